// SPDX-License-Identifier: GPL-2.0
/*
 * Makes one allocation fail while a kernel function runs, and says how many
 * there were.
 *
 * After a number was written to `nth`, the next call of `function` has its
 * allocation of that number fail, as if the task that makes the call had
 * written it to its /proc/self/fail-nth just before. So only what the function
 * does is counted, and a work item can be had, too. When the call has returned,
 * `left` is how far it was from a failure: 0 if there was one. Before that it
 * is negative.
 */

#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

static char *function;
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "Name of the function in which an allocation fails");

static uint nth;
static int left = -1;
module_param(left, int, 0444);
MODULE_PARM_DESC(left, "How many allocations there would have had to be more");

/* Whether there was a call, since the number was written. */
static atomic_t called = ATOMIC_INIT(1);

static int set_nth(const char *value, const struct kernel_param *param)
{
	int ret = param_set_uint(value, param);

	if (ret)
		return ret;
	left = -1;
	atomic_set(&called, 0);
	return 0;
}

static const struct kernel_param_ops nth_ops = {
	.set = set_nth,
	.get = param_get_uint,
};

module_param_cb(nth, &nth_ops, &nth, 0644);
MODULE_PARM_DESC(nth, "Which allocation is to fail, from 1");

static int entered(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (atomic_xchg(&called, 1))
		return 1;
	current->fail_nth = nth;
	return 0;
}

static int returned(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	int rest = current->fail_nth;

	current->fail_nth = 0;
	WRITE_ONCE(left, rest);
	return 0;
}

static struct kretprobe probe = {
	.entry_handler = entered,
	.handler = returned,
};

static int __init failnth_init(void)
{
	probe.kp.symbol_name = function;
	return register_kretprobe(&probe);
}

static void __exit failnth_exit(void)
{
	unregister_kretprobe(&probe);
}

module_init(failnth_init);
module_exit(failnth_exit);

MODULE_DESCRIPTION("Makes one allocation of a function fail");
MODULE_LICENSE("GPL");
