// SPDX-License-Identifier: GPL-2.0
/*
 * Does what a device's driver does when something happens to an object, for
 * tests with drivers to which nothing happens.
 *
 * While the module is loaded it remembers the completion queue and the queue
 * pair that were created last. Reading one of its parameters calls a handler:
 * `completion`, `cq_event` (a CQ error) or `qp_event` (a fatal QP error).
 */

#include <linux/kprobes.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static struct ib_cq *cq;
static struct ib_qp *qp;

static int created(struct kretprobe_instance *instance, struct pt_regs *regs);

static struct kretprobe cq_probe = {
	.kp.symbol_name = "__ib_create_cq",
	.handler = created,
};

static struct kretprobe qp_probe = {
	.kp.symbol_name = "ib_create_qp_kernel",
	.handler = created,
};

static int created(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	void *object = (void *)regs_return_value(regs);

	if (IS_ERR(object))
		return 0;
	if (get_kretprobe(instance) == &cq_probe)
		cq = object;
	else
		qp = object;
	return 0;
}

static int get_completion(char *buffer, const struct kernel_param *param)
{
	if (!cq)
		return -ENODEV;
	cq->comp_handler(cq, cq->cq_context);
	return 0;
}

static int get_cq_event(char *buffer, const struct kernel_param *param)
{
	struct ib_event event = { .event = IB_EVENT_CQ_ERR };

	if (!cq)
		return -ENODEV;
	event.device = cq->device;
	event.element.cq = cq;
	cq->event_handler(&event, cq->cq_context);
	return 0;
}

static int get_qp_event(char *buffer, const struct kernel_param *param)
{
	struct ib_event event = { .event = IB_EVENT_QP_FATAL };

	if (!qp)
		return -ENODEV;
	event.device = qp->device;
	event.element.qp = qp;
	qp->event_handler(&event, qp->qp_context);
	return 0;
}

static const struct kernel_param_ops completion_ops = { .get = get_completion };
static const struct kernel_param_ops cq_event_ops = { .get = get_cq_event };
static const struct kernel_param_ops qp_event_ops = { .get = get_qp_event };

module_param_cb(completion, &completion_ops, NULL, 0400);
MODULE_PARM_DESC(completion, "Reading it calls the completion handler");
module_param_cb(cq_event, &cq_event_ops, NULL, 0400);
MODULE_PARM_DESC(cq_event, "Reading it calls the event handler of the completion queue");
module_param_cb(qp_event, &qp_event_ops, NULL, 0400);
MODULE_PARM_DESC(qp_event, "Reading it calls the event handler of the queue pair");

static int __init events_init(void)
{
	int ret = register_kretprobe(&cq_probe);

	if (ret)
		return ret;
	ret = register_kretprobe(&qp_probe);
	if (ret)
		unregister_kretprobe(&cq_probe);
	return ret;
}

static void __exit events_exit(void)
{
	unregister_kretprobe(&qp_probe);
	unregister_kretprobe(&cq_probe);
}

module_init(events_init);
module_exit(events_exit);

MODULE_DESCRIPTION("Calls the handlers of RDMA objects");
MODULE_LICENSE("GPL");
