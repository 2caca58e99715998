// SPDX-License-Identifier: GPL-2.0
/*
 * The smoke test of one device, step by step.
 */

#include "krdma_smoke_c.h"

#include <linux/module.h>

void smoke_failed(const char *step, int error)
{
	pr_err("%s failed, ret=%d\n", step, error);
}

/* An object that still exists refers to this module, which has to stay. */
void smoke_kept(const char *function, int error)
{
	smoke_failed(function, error);
	pr_err("the driver keeps an object that refers to this module; reboot\n");
}

/* Says how destroying went, and tells whether the object is gone. */
static bool destroyed(const char *function, int error)
{
	if (error) {
		__module_get(THIS_MODULE);
		smoke_kept(function, error);
		return false;
	}

	pr_info("%s success\n", function);
	return true;
}

static void smoke_completion(struct ib_cq *cq, void *context)
{
	pr_info("CQ completion callback\n");
}

void smoke_cq_event(struct ib_event *event, void *context)
{
	pr_info("CQ event %u\n", event->event);
}

void smoke_qp_event(struct ib_event *event, void *context)
{
	pr_info("QP event %u\n", event->event);
}

int resources_create(struct resources *resources, struct ib_device *device)
{
	const struct ib_cq_init_attr cq_attr = {
		.cqe = 16,
	};
	struct ib_qp_init_attr qp_attr = {
		.event_handler = smoke_qp_event,
		.cap = {
			.max_send_wr = 16,
			.max_recv_wr = 16,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	int ret;

	resources->pd = ib_alloc_pd(device, 0);
	if (IS_ERR(resources->pd)) {
		ret = PTR_ERR(resources->pd);
		smoke_failed("ib_alloc_pd", ret);
		return ret;
	}
	pr_info("ib_alloc_pd success\n");

	/* ib_core leaves the vector to its callers. */
	if (device->num_comp_vectors < 1)
		resources->cq = ERR_PTR(-EINVAL);
	else
		resources->cq = ib_create_cq(device, smoke_completion,
					     smoke_cq_event, NULL, &cq_attr);
	if (IS_ERR(resources->cq)) {
		ret = PTR_ERR(resources->cq);
		smoke_failed("ib_create_cq", ret);
		goto err_pd;
	}
	pr_info("ib_create_cq success\n");

	qp_attr.send_cq = resources->cq;
	qp_attr.recv_cq = resources->cq;
	resources->qp = ib_create_qp(resources->pd, &qp_attr);
	if (IS_ERR(resources->qp)) {
		ret = PTR_ERR(resources->qp);
		smoke_failed("ib_create_qp", ret);
		goto err_cq;
	}
	pr_info("ib_create_qp success, qpn=%u\n", resources->qp->qp_num);

	pr_info("resource smoke success\n");
	return 0;

err_cq:
	destroyed("ib_destroy_cq", ib_destroy_cq_user(resources->cq, NULL));
err_pd:
	destroyed("ib_dealloc_pd", ib_dealloc_pd_user(resources->pd, NULL));
	return ret;
}

void resources_destroy(struct resources *resources)
{
	/* One that could not be destroyed goes on using the other two. */
	if (!destroyed("ib_destroy_qp", ib_destroy_qp(resources->qp)))
		return;

	destroyed("ib_destroy_cq", ib_destroy_cq_user(resources->cq, NULL));
	destroyed("ib_dealloc_pd", ib_dealloc_pd_user(resources->pd, NULL));
}
