// SPDX-License-Identifier: GPL-2.0
/*
 * The smoke test of one device, step by step.
 */

#include "krdma_smoke_c.h"

#include <linux/module.h>
#include <linux/slab.h>

void smoke_failed(const char *step, int error)
{
	pr_err("%s failed, ret=%d\n", step, error);
}

/*
 * Tells whether the object is gone. Nobody has asked, so only what could not be
 * destroyed is said: it refers to this module, which has to stay.
 */
bool wire_destroyed(const char *function, int error)
{
	if (!error)
		return true;

	__module_get(THIS_MODULE);
	smoke_failed(function, error);
	pr_err("the driver keeps an object that refers to this module; reboot\n");
	return false;
}

/* Says how destroying went, and tells whether the object is gone. */
static bool destroyed(const char *function, int error)
{
	if (!wire_destroyed(function, error))
		return false;

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

/* Creates the queue pairs; on failure those that there are stay. */
static int create_qps(struct resources *resources,
		      const struct ib_qp_init_attr *wanted,
		      unsigned int queue_pairs)
{
	struct ib_qp_init_attr attr;
	struct ib_qp *qp;

	while (resources->n_qps < queue_pairs) {
		/* Drivers may change it, such as by rounding up. */
		attr = *wanted;
		qp = ib_create_qp(resources->pd, &attr);
		if (IS_ERR(qp)) {
			if (!resources->n_qps)
				smoke_failed("ib_create_qp", PTR_ERR(qp));
			else
				pr_err("ib_create_qp failed, ret=%ld, after %u queue pairs\n",
				       PTR_ERR(qp), resources->n_qps);
			return PTR_ERR(qp);
		}
		resources->qps[resources->n_qps++] = qp;
	}

	if (queue_pairs == 1)
		pr_info("ib_create_qp success, qpn=%u\n",
			resources->qps[0]->qp_num);
	else
		pr_info("ib_create_qp success, qpn=%u and %u more\n",
			resources->qps[0]->qp_num, queue_pairs - 1);
	return 0;
}

int resources_create(struct resources *resources, struct ib_device *device,
		     unsigned int queue_pairs)
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

	resources->n_qps = 0;
	resources->qps = kvmalloc_array(queue_pairs, sizeof(*resources->qps),
					GFP_KERNEL);
	if (!resources->qps)
		return -ENOMEM;

	resources->pd = ib_alloc_pd(device, 0);
	if (IS_ERR(resources->pd)) {
		ret = PTR_ERR(resources->pd);
		smoke_failed("ib_alloc_pd", ret);
		goto err_qps;
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
	ret = create_qps(resources, &qp_attr, queue_pairs);
	if (ret) {
		resources_destroy(resources);
		return ret;
	}

	pr_info("resource smoke success\n");
	return 0;

err_pd:
	destroyed("ib_dealloc_pd", ib_dealloc_pd_user(resources->pd, NULL));
err_qps:
	kvfree(resources->qps);
	return ret;
}

/* Destroys queue pairs and frees their list; returns the first error. */
int qps_destroy(struct ib_qp **qps, unsigned int n_qps)
{
	int first_error = 0;
	unsigned int i;
	int ret;

	for (i = 0; i < n_qps; i++) {
		ret = ib_destroy_qp(qps[i]);
		if (!first_error)
			first_error = ret;
	}
	kvfree(qps);
	return first_error;
}

void resources_destroy(struct resources *resources)
{
	int first_error = qps_destroy(resources->qps, resources->n_qps);

	/* One that could not be destroyed goes on using the other two. */
	if (resources->n_qps && !destroyed("ib_destroy_qp", first_error))
		return;

	destroyed("ib_destroy_cq", ib_destroy_cq_user(resources->cq, NULL));
	destroyed("ib_dealloc_pd", ib_dealloc_pd_user(resources->pd, NULL));
}
