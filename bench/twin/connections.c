// SPDX-License-Identifier: GPL-2.0
/*
 * Connections over which nothing is sent: whether as many can be made, and how
 * fast.
 */

#include "krdma_smoke_c.h"

#include <linux/slab.h>

/* The queue pairs at one end, and what they share. */
struct end_qps {
	struct ib_pd *pd;
	struct ib_cq *cq;
	u32 n_qps;
	struct ib_qp **qps;
};

static void completion(struct ib_cq *cq, void *context)
{
}

/* Also of what is not complete. */
static void end_destroy(struct end_qps *end)
{
	int first_error = qps_destroy(end->qps, end->n_qps);

	/* One that could not be destroyed goes on using the other two. */
	if (!wire_destroyed("ib_destroy_qp", first_error))
		return;

	if (end->cq)
		wire_destroyed("ib_destroy_cq",
			       ib_destroy_cq_user(end->cq, NULL));
	if (end->pd)
		wire_destroyed("ib_dealloc_pd",
			       ib_dealloc_pd_user(end->pd, NULL));
}

/* Makes room, and what is shared; the caller destroys what there is. */
static int end_init(struct end_qps *end, struct ib_device *device, u32 count,
		    struct failure *failure)
{
	const struct ib_cq_init_attr cq_attr = {
		.cqe = 1,
	};
	struct ib_pd *pd;
	struct ib_cq *cq;

	end->qps = kvmalloc_array(count, sizeof(*end->qps), GFP_KERNEL);
	if (!end->qps)
		return failed_call(failure, "allocating memory", -ENOMEM);

	pd = ib_alloc_pd(device, 0);
	if (IS_ERR(pd))
		return failed_call(failure, "ib_alloc_pd", PTR_ERR(pd));
	end->pd = pd;

	/* ib_core leaves the vector to its callers. */
	if (device->num_comp_vectors < 1)
		cq = ERR_PTR(-EINVAL);
	else
		cq = ib_create_cq(device, completion, smoke_cq_event, NULL,
				  &cq_attr);
	if (IS_ERR(cq))
		return failed_call(failure, "ib_create_cq", PTR_ERR(cq));
	end->cq = cq;
	return 0;
}

static int end_fill(struct end_qps *end, const struct run *run, u32 count,
		    struct failure *failure)
{
	struct ib_qp *qp;

	while (end->n_qps < count) {
		struct ib_qp_init_attr attr = {
			.event_handler = smoke_qp_event,
			.send_cq = end->cq,
			.recv_cq = end->cq,
			.cap = {
				.max_send_wr = 1,
				.max_recv_wr = 1,
				.max_send_sge = 1,
				.max_recv_sge = 1,
			},
			.sq_sig_type = IB_SIGNAL_REQ_WR,
			.qp_type = IB_QPT_RC,
		};

		if (run_is_stopped(run))
			return stopped(failure);

		qp = ib_create_qp(end->pd, &attr);
		if (IS_ERR(qp))
			return failed_call(failure, "ib_create_qp",
					   PTR_ERR(qp));
		end->qps[end->n_qps++] = qp;
	}

	return 0;
}

static int connect_all(const struct run *run, struct end_qps ends[SIDES],
		       u32 count, struct failure *failure)
{
	const struct address *addresses = run->addresses;
	const struct port *ports = run->ports;
	const struct qp_attr attr = {};
	u32 i;
	int ret;

	for (i = 0; i < count; i++) {
		struct ib_qp *here = ends[HERE].qps[i];
		struct ib_qp *there = ends[THERE].qps[i];

		if (run_is_stopped(run))
			return stopped(failure);

		ret = qp_connect(there, &attr, &ports[THERE],
				 &addresses[THERE], &ports[HERE],
				 &addresses[HERE], here->qp_num);
		if (!ret)
			ret = qp_connect(here, &attr, &ports[HERE],
					 &addresses[HERE], &ports[THERE],
					 &addresses[THERE], there->qp_num);
		if (ret)
			return failed_call(failure, "ib_modify_qp", ret);
	}

	return 0;
}

/*
 * Makes queue pairs at both ends and connects them; returns how long that took,
 * from the first call that creates one until all are in the state RTS.
 */
int connections_make(const struct run *run, u32 count, u64 *elapsed,
		     struct failure *failure)
{
	struct end_qps ends[SIDES] = {};
	u64 start;
	int ret;

	ret = end_init(&ends[HERE], run->here, count, failure);
	if (!ret)
		ret = end_init(&ends[THERE], run->there, count, failure);

	start = ktime_get_ns();
	if (!ret)
		ret = end_fill(&ends[HERE], run, count, failure);
	if (!ret)
		ret = end_fill(&ends[THERE], run, count, failure);
	if (!ret)
		ret = connect_all(run, ends, count, failure);
	*elapsed = ktime_get_ns() - start;

	end_destroy(&ends[THERE]);
	end_destroy(&ends[HERE]);
	return ret;
}
