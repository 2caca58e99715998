// SPDX-License-Identifier: GPL-2.0
/*
 * The file of results in debugfs.
 */

#include "krdma_smoke_c.h"

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

/* A device can have a slash in its name, which becomes a !, as in sysfs. */
int results_file_create(struct results_file *file, struct dentry *parent,
			const char *name)
{
	char *directory;

	directory = kasprintf(GFP_KERNEL, "%*pEhps", (int)strlen(name), name);
	if (!directory)
		return -ENOMEM;

	strreplace(directory, '/', '!');
	file->directory = debugfs_create_dir(directory, parent);
	debugfs_create_file("results", 0400, file->directory, file->results,
			    &results_fops);
	kfree(directory);
	return 0;
}

void results_file_remove(struct results_file *file)
{
	debugfs_remove(file->directory);
	file->directory = NULL;
}
