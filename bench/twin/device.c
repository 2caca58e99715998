// SPDX-License-Identifier: GPL-2.0
/*
 * Devices, and flags that tell their users to stop.
 */

#include "krdma_smoke_c.h"

#include <linux/slab.h>
#include <linux/uaccess.h>

/*
 * ib_core keeps the name twice: in ib_device.name and as the name of the kernel
 * object. If the one or the other is not where it is looked for, they differ.
 */
bool device_looks_right(struct ib_device *device)
{
	char name[IB_DEVICE_NAME_MAX], kernel_name[IB_DEVICE_NAME_MAX];
	const char *pointer;
	size_t length;

	if (copy_from_kernel_nofault(name, device->name, sizeof(name)))
		return false;

	/* Nameless is no device. */
	length = strnlen(name, sizeof(name));
	if (!length || length == sizeof(name))
		return false;

	if (copy_from_kernel_nofault(&pointer, &device->dev.kobj.name,
				     sizeof(pointer)))
		return false;
	if (copy_from_kernel_nofault(kernel_name, pointer, length + 1))
		return false;

	return !memcmp(name, kernel_name, length + 1);
}

struct stop *stop_create(void)
{
	struct stop *stop = kzalloc_obj(*stop);

	if (stop)
		kref_init(&stop->kref);
	return stop;
}

void stop_release(struct kref *kref)
{
	kfree(container_of(kref, struct stop, kref));
}
