// SPDX-License-Identifier: GPL-2.0
/*
 * The ib_core that the module was built for, and the one that is running.
 */

#include "krdma_smoke_c.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>

#include "ib_core_generated.h"

/* The type of the note, which no header of the kernel names. */
#define NT_GNU_BUILD_ID	3

/* Header and name are 16 bytes, the longest build-id of ld, SHA-1, is 20. */
#define NOTE_SIZE_MAX	64
#define NOTE_HEADER	16

static const u8 build_id[] = IB_CORE_BUILD_ID;

/* Returns what the build recorded, as it is shown. */
const char *built_for(void)
{
	return IB_CORE_BUILT_FOR;
}

/*
 * Reads the beginning of a file of sysfs. Not by kernel_read_file_from_path():
 * security modules have no word for these.
 */
static int read_file(const char *path, u8 *bytes, size_t size)
{
	struct file *file = filp_open(path, O_RDONLY, 0);
	ssize_t count;
	loff_t pos = 0;

	if (IS_ERR(file))
		return PTR_ERR(file);

	memset(bytes, 0, size);
	count = kernel_read(file, bytes, size, &pos);
	fput(file);
	return count < 0 ? count : 0;
}

/* Returns the build-id in a note and its size, or NULL. */
static const u8 *note_build_id(const u8 *note, u32 *size)
{
	const u32 *words = (const u32 *)note;

	*size = words[1];
	if (words[0] != 4 || words[2] != NT_GNU_BUILD_ID ||
	    memcmp(note + 12, "GNU", 4) || *size > NOTE_SIZE_MAX - NOTE_HEADER)
		return NULL;

	return note + NOTE_HEADER;
}

/* A module that was not made with the kernel taints it, shown as O. */
static bool is_other_origin(void)
{
	u8 taint[16];

	if (read_file("/sys/module/ib_core/taint", taint, sizeof(taint)))
		return false;

	return IB_CORE_IN_TREE == !!memchr(taint, 'O', sizeof(taint));
}

/*
 * Compares the build-ids. Returns 1 if they differ, which is said, 0 if they do
 * not, or an error if that cannot be told.
 */
static int compare_build_ids(void)
{
	u8 note[NOTE_SIZE_MAX] __aligned(4);
	const u8 *running;
	u32 size;
	int ret;

	ret = read_file("/sys/module/ib_core/notes/.note.gnu.build-id", note,
			sizeof(note));
	if (ret)
		return ret;

	running = note_build_id(note, &size);
	if (!running)
		return -EINVAL;
	if (size == sizeof(build_id) && !memcmp(running, build_id, size))
		return 0;

	pr_err("built for ib_core %s, but ib_core %*phN is running: run 'make' again, or load with check_ib_core=0 if you know that they are alike\n",
	       built_for(), (int)size, running);
	return 1;
}

int check_running_ib_core(void)
{
	int ret = 0;

	if (IB_CORE_BUILT_IN)
		return 0;

	if (IB_CORE_HAS_BUILD_ID) {
		ret = compare_build_ids();
		if (ret >= 0)
			return ret ? -ENOEXEC : 0;
	}

	if (is_other_origin()) {
		pr_err("built for ib_core %s, but an ib_core of %s is running: run 'make' again, or load with check_ib_core=0 if you know that they are alike\n",
		       built_for(),
		       IB_CORE_IN_TREE ? "somebody else" : "the kernel itself");
		return -ENOEXEC;
	}

	if (ret)
		pr_warn("cannot check which ib_core is running: its build-id is not readable, ret=%d\n",
			ret);
	else
		pr_warn("cannot check which ib_core is running: the build recorded none\n");
	return 0;
}
