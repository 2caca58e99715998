// SPDX-License-Identifier: GPL-2.0
/*
 * The device at the other end.
 */

#include "krdma_smoke_c.h"

#include <linux/slab.h>

int peer_init(struct peer *peer, const char *name)
{
	mutex_init(&peer->lock);
	peer->name = name;
	peer->shown = kasprintf(GFP_KERNEL, NAME_FMT, NAME_ARGS(name));
	return peer->shown ? 0 : -ENOMEM;
}

void peer_destroy(struct peer *peer)
{
	kfree(peer->shown);
}

bool peer_is_there(struct peer *peer)
{
	guard(mutex)(&peer->lock);
	return peer->device;
}

/* Returns references to the device and to what tells that it is going. */
struct ib_device *peer_current(struct peer *peer, struct stop **stop)
{
	guard(mutex)(&peer->lock);

	if (!peer->device)
		return NULL;

	device_hold(peer->device);
	*stop = stop_get(peer->stop);
	return peer->device;
}

static void peer_replace(struct peer *peer, struct ib_device *device,
			 struct stop *stop)
{
	struct ib_device *former_device = peer->device;
	struct stop *former_stop = peer->stop;

	peer->device = device;
	peer->stop = stop;
	if (former_device) {
		ib_device_put(former_device);
		stop_put(former_stop);
	}
}

static void offer_withdraw(struct peer *peer, struct stop *stop)
{
	guard(mutex)(&peer->lock);

	if (peer->stop == stop)
		peer_replace(peer, NULL, NULL);
}

void offer_rename(struct peer *peer, struct stop *stop,
		  struct ib_device *device, const char *name)
{
	if (strcmp(peer->name, name)) {
		offer_withdraw(peer, stop);
		return;
	}

	device_hold(device);
	guard(mutex)(&peer->lock);
	peer_replace(peer, device, stop_get(stop));
}

struct stop *offer_create(struct peer *peer, struct ib_device *device,
			  const char *name)
{
	struct stop *stop = stop_create();

	if (stop)
		offer_rename(peer, stop, device, name);
	return stop;
}

void offer_destroy(struct peer *peer, struct stop *stop)
{
	raise(&stop->raised);
	offer_withdraw(peer, stop);
	stop_put(stop);
}
