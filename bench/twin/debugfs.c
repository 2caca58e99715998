// SPDX-License-Identifier: GPL-2.0
/*
 * The file of results in debugfs.
 */

#include "krdma_smoke_c.h"

#include <linux/dcache.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

static int results_show(struct seq_file *seq, void *unused)
{
	results_write(seq->private, seq);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(results);

/* Held from when a free name is looked for until it is taken. */
static DEFINE_MUTEX(naming);

static bool is_taken(struct dentry *parent, const char *name)
{
	struct dentry *found = debugfs_lookup(name, parent);

	dput(found);
	return found;
}

/*
 * Makes a directory with a number behind its name if that is taken, as devices
 * in different network namespaces can have the same.
 */
static int directory_create(struct results_file *file, struct dentry *parent,
			    const char *wanted)
{
	char *other = NULL;
	unsigned int number;

	guard(mutex)(&naming);

	for (number = 2; is_taken(parent, other ?: wanted); number++) {
		kfree(other);
		other = kasprintf(GFP_KERNEL, "%s.%u", wanted, number);
		if (!other)
			return -ENOMEM;
	}

	file->directory = debugfs_create_dir(other ?: wanted, parent);
	if (other)
		pr_notice("the directory %s is taken, the results of this device are in %s\n",
			  wanted, other);
	kfree(other);
	return 0;
}

/* A device can have a slash in its name, which becomes a !, as in sysfs. */
int results_file_create(struct results_file *file, struct dentry *parent,
			const char *name)
{
	char *directory;
	int ret;

	directory = kasprintf(GFP_KERNEL, "%*pEhps", (int)strlen(name), name);
	if (!directory)
		return -ENOMEM;

	strreplace(directory, '/', '!');
	ret = directory_create(file, parent, directory);
	if (!ret)
		debugfs_create_file("results", 0400, file->directory,
				    file->results, &results_fops);
	kfree(directory);
	return ret;
}

void results_file_remove(struct results_file *file)
{
	debugfs_remove(file->directory);
	file->directory = NULL;
}
