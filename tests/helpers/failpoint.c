// SPDX-License-Identifier: GPL-2.0
/*
 * Makes a kernel function fail, for tests on kernels without fault injection.
 *
 * While the module is loaded, a call of the function that has the name
 * `function` returns `error` without doing anything, or only `times` calls do,
 * the first ones but for `after` others. The function must return an int or a
 * pointer, unless `times` is 0: then calls are only counted, in `calls`. Each
 * call is held up for `delay` milliseconds, in which its processor is busy.
 */

#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>

static char *function;
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "Name of the function that is to fail");

static int error = -EIO;
module_param(error, int, 0444);
MODULE_PARM_DESC(error, "What it returns");

static int times = INT_MAX;
module_param(times, int, 0444);
MODULE_PARM_DESC(times, "How many calls fail");

static int after;
module_param(after, int, 0444);
MODULE_PARM_DESC(after, "How many calls come before those that fail");

static uint delay;
module_param(delay, uint, 0444);
MODULE_PARM_DESC(delay, "How long each call is held up, in milliseconds");

static atomic_t calls = ATOMIC_INIT(0);
module_param_named(calls, calls.counter, int, 0444);
MODULE_PARM_DESC(calls, "How many calls there were");

/* What runs in place of the function. */
static noinline long failing(void)
{
	return error;
}

static int divert(struct kprobe *probe, struct pt_regs *regs)
{
	int call = atomic_inc_return(&calls);

	mdelay(delay);
	if (call <= after || call - after > times)
		return 0;
	instruction_pointer_set(regs, (unsigned long)failing);
	return 1;
}

/* A probe with such a handler is not optimised; an optimised one cannot divert. */
static void done(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

static struct kprobe probe = {
	.pre_handler = divert,
	.post_handler = done,
};

static int __init failpoint_init(void)
{
	probe.symbol_name = function;
	return register_kprobe(&probe);
}

static void __exit failpoint_exit(void)
{
	unregister_kprobe(&probe);
}

module_init(failpoint_init);
module_exit(failpoint_exit);

MODULE_DESCRIPTION("Makes a kernel function fail");
MODULE_LICENSE("GPL");
