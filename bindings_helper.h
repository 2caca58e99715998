/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads. Which of its declarations become Rust is the allow-list
 * in Kbuild.
 */

#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/uaccess.h>
#include <linux/utsname.h>
