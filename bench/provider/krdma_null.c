// SPDX-License-Identifier: GPL-2.0
/*
 * RDMA devices that are nothing but memory: what is posted has been done, and
 * has completed, when posting returns (unless completions are to come late or to
 * fail, for tests). What a client takes of the processor's time can be told by
 * them, for they leave it nothing to wait for.
 *
 * Both ends of a connection are on the same device. There are messages between
 * reliable-connected queue pairs, and memory regions for fast registration; no
 * user space, and nothing else.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device/faux.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#include "mark.h"

MODULE_DESCRIPTION("RDMA devices that complete at once");
MODULE_LICENSE("GPL");

static unsigned int devices = 1;
module_param(devices, uint, 0444);
MODULE_PARM_DESC(devices, "Number of devices, null0 and so on (default: 1)");

static unsigned int late;
module_param(late, uint, 0444);
MODULE_PARM_DESC(late, "Number of completions, of all, that come 2.5 s after one another (default: 0)");

static unsigned int fail;
module_param(fail, uint, 0444);
MODULE_PARM_DESC(fail, "Number of the send that fails, which is told 0.1 s after those behind it are flushed (default: 0, none)");

static unsigned int atomics = 2;
module_param(atomics, uint, 0444);
MODULE_PARM_DESC(atomics, "Atomics: 2 for all, 1 for user space only, which is not told, 0 for none (default: 2)");

static bool no_registration;
module_param(no_registration, bool, 0444);
MODULE_PARM_DESC(no_registration, "Memory cannot be registered by work requests (default: N)");

static unsigned int message_max = 1U << 30;
module_param(message_max, uint, 0444);
MODULE_PARM_DESC(message_max, "Size of the largest message, in bytes (default: 1 GiB)");

static bool dma;
module_param(dma, bool, 0444);
MODULE_PARM_DESC(dma, "Memory has the addresses that it has on a bus, not virtual ones (default: N)");

/* What is on that bus, if there is one. */
static struct faux_device *on_bus;

/* Protects `late`, and when the next one comes, and `fail`. */
static DEFINE_SPINLOCK(late_lock);
static unsigned long late_next;

#define DEVICES_MAX	64
#define DEPTH_MAX	16384
#define PAGES_MAX	1024
#define LATE_BY		(5 * HZ / 2)
#define CAUSE_LATE_BY	(HZ / 10)

/* From this one on, lists of messages are marked: this, twice as many, ... */
#define FIRST_MARKED	64

struct null_device {
	struct ib_device ib;
	/* By number; keys are of a region's number and of eight bits more. */
	struct xarray qps;
	struct xarray regions;
	/* How many lists of messages were posted since memory was opened. */
	u32 posts;
};

struct null_pd {
	struct ib_pd ib;
};

/* The ring has room for as many as the queue has, and what is too much goes. */
struct null_cq {
	struct ib_cq ib;
	/* Protects what follows. */
	spinlock_t lock;
	u32 head;
	u32 tail;
	u32 mask;
	bool is_armed;
	struct ib_wc *ring;
	/* Why the others were flushed, and from when on that is told. */
	bool has_cause;
	unsigned long cause_at;
	struct ib_wc cause;
};

struct null_receive {
	struct ib_cqe *cqe;
	struct ib_sge sge;
};

struct null_qp {
	struct ib_qp ib;
	/* Protects what follows. */
	spinlock_t lock;
	enum ib_qp_state state;
	u32 peer;
	u32 head;
	u32 tail;
	u32 mask;
	struct null_receive *receives;
};

struct null_mr {
	struct ib_mr ib;
	bool is_open;
	u32 pages_max;
	u32 n_pages;
	u64 pages[] __counted_by(pages_max);
};

static struct null_device *all[DEVICES_MAX];

static struct null_device *to_device(struct ib_device *device)
{
	return container_of(device, struct null_device, ib);
}

static struct null_qp *to_qp(struct ib_qp *qp)
{
	return container_of(qp, struct null_qp, ib);
}

static struct null_cq *to_cq(struct ib_cq *cq)
{
	return container_of(cq, struct null_cq, ib);
}

static void null_complete(struct ib_cq *ib_cq, const struct ib_wc *wc)
{
	struct null_cq *cq = to_cq(ib_cq);
	bool is_armed;

	scoped_guard(spinlock_irqsave, &cq->lock) {
		if (cq->tail - cq->head <= cq->mask)
			cq->ring[cq->tail++ & cq->mask] = *wc;
		is_armed = cq->is_armed;
		cq->is_armed = false;
	}

	if (is_armed)
		ib_cq->comp_handler(ib_cq, ib_cq->cq_context);
}

/* For a queue that is polled: nobody is notified. */
static void null_complete_late(struct ib_cq *ib_cq, const struct ib_wc *wc)
{
	struct null_cq *cq = to_cq(ib_cq);

	guard(spinlock_irqsave)(&cq->lock);
	cq->has_cause = true;
	cq->cause_at = jiffies + CAUSE_LATE_BY;
	cq->cause = *wc;
}

/* Returns what has an address for the devices. */
static void *null_memory(u64 address)
{
	/* There is nothing between the bus and memory. */
	return on_bus ? phys_to_virt(address) : (void *)(uintptr_t)address;
}

/* Returns the region that the key opens, if all of the memory is in it. */
static struct null_mr *null_remote(struct null_device *device, u64 address,
				   u32 key, u32 length)
{
	struct null_mr *mr = xa_load(&device->regions, key >> 8);

	if (!mr || !mr->is_open || mr->ib.rkey != key ||
	    address < mr->ib.iova ||
	    address + length > mr->ib.iova + mr->ib.length)
		return NULL;

	return mr;
}

/* Returns where memory of a region is, as far as it is in one page. */
static void *null_at(const struct null_mr *mr, u64 address)
{
	u64 offset = address - (mr->ib.iova & PAGE_MASK);

	return null_memory(mr->pages[offset / PAGE_SIZE] +
			   offset_in_page(offset));
}

/* Copies to a region, or from it. */
static void null_copy(const struct null_mr *mr, u64 address, void *local,
		      u32 length, bool is_write)
{
	void *remote;
	u32 part;

	for (; length; length -= part, address += part, local += part) {
		remote = null_at(mr, address);
		part = min(length, (u32)(PAGE_SIZE - offset_in_page(remote)));
		if (is_write)
			memcpy(remote, local, part);
		else
			memcpy(local, remote, part);
	}
}

/* Puts a message into the peer's next receive. */
static enum ib_wc_status null_receive(struct null_qp *peer,
				      const struct ib_send_wr *wr,
				      const void *data, u32 length)
{
	struct null_receive *receive;
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = data ? IB_WC_RECV : IB_WC_RECV_RDMA_WITH_IMM,
		.byte_len = length,
		.qp = &peer->ib,
		.src_qp = peer->peer,
	};

	if (wr->opcode == IB_WR_SEND_WITH_IMM ||
	    wr->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		wc.wc_flags = IB_WC_WITH_IMM;
		wc.ex.imm_data = wr->ex.imm_data;
	}

	scoped_guard(spinlock_irqsave, &peer->lock) {
		if (peer->head == peer->tail)
			return IB_WC_RNR_RETRY_EXC_ERR;

		receive = &peer->receives[peer->head & peer->mask];
		if (data && length > receive->sge.length)
			return IB_WC_REM_INV_REQ_ERR;
		peer->head++;
		if (data)
			memcpy(null_memory(receive->sge.addr), data, length);
		wc.wr_cqe = receive->cqe;
	}

	null_complete(peer->ib.recv_cq, &wc);
	return IB_WC_SUCCESS;
}

static enum ib_wc_status null_atomic(struct null_device *device,
				     const struct ib_send_wr *wr, u64 *local)
{
	const struct ib_atomic_wr *atomic = atomic_wr(wr);
	const struct null_mr *mr = null_remote(device, atomic->remote_addr,
					       atomic->rkey, sizeof(u64));
	u64 *remote;

	if (!mr)
		return IB_WC_REM_ACCESS_ERR;
	if (atomic->remote_addr % sizeof(u64))
		return IB_WC_REM_INV_REQ_ERR;

	remote = null_at(mr, atomic->remote_addr);
	*local = *remote;
	if (wr->opcode == IB_WR_ATOMIC_FETCH_AND_ADD)
		*remote += atomic->compare_add;
	else if (*remote == atomic->compare_add)
		*remote = atomic->swap;
	return IB_WC_SUCCESS;
}

static enum ib_wc_status null_register(struct null_mr *mr, bool is_open)
{
	if (mr->is_open == is_open)
		return IB_WC_LOC_QP_OP_ERR;

	mr->is_open = is_open;
	return IB_WC_SUCCESS;
}

static enum ib_wc_status null_execute(struct null_qp *qp,
				      const struct ib_send_wr *wr,
				      struct ib_wc *wc)
{
	struct null_device *device = to_device(qp->ib.device);
	struct null_qp *peer = xa_load(&device->qps, qp->peer);
	const struct ib_sge *sge = wr->num_sge ? wr->sg_list : NULL;
	void *local = sge ? null_memory(sge->addr) : NULL;
	u32 length = sge ? sge->length : 0;
	struct null_mr *mr;

	switch (wr->opcode) {
	case IB_WR_REG_MR:
		mr = container_of(reg_wr(wr)->mr, struct null_mr, ib);
		return null_register(mr, true);
	case IB_WR_LOCAL_INV:
		mr = xa_load(&device->regions, wr->ex.invalidate_rkey >> 8);
		return mr ? null_register(mr, false) : IB_WC_LOC_QP_OP_ERR;
	default:
		break;
	}

	if (!peer)
		return IB_WC_RETRY_EXC_ERR;

	switch (wr->opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		wc->opcode = IB_WC_SEND;
		return null_receive(peer, wr, local ?: "", length);
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		wc->opcode = IB_WC_RDMA_WRITE;
		mr = null_remote(device, rdma_wr(wr)->remote_addr,
				 rdma_wr(wr)->rkey, length);
		if (!mr)
			return IB_WC_REM_ACCESS_ERR;
		null_copy(mr, rdma_wr(wr)->remote_addr, local, length, true);
		if (wr->opcode == IB_WR_RDMA_WRITE)
			return IB_WC_SUCCESS;
		return null_receive(peer, wr, NULL, length);
	case IB_WR_RDMA_READ:
		wc->opcode = IB_WC_RDMA_READ;
		mr = null_remote(device, rdma_wr(wr)->remote_addr,
				 rdma_wr(wr)->rkey, length);
		if (!mr)
			return IB_WC_REM_ACCESS_ERR;
		null_copy(mr, rdma_wr(wr)->remote_addr, local, length, false);
		return IB_WC_SUCCESS;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		wc->opcode = IB_WC_COMP_SWAP;
		return null_atomic(device, wr, local);
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		wc->opcode = IB_WC_FETCH_ADD;
		return null_atomic(device, wr, local);
	default:
		return IB_WC_LOC_QP_OP_ERR;
	}
}

/* Tells whether a work request is one that is not taken. */
static bool null_is_refused(const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return atomics < 2;
	case IB_WR_REG_MR:
	case IB_WR_LOCAL_INV:
		return no_registration;
	default:
		return false;
	}
}

/* Tells whether this send is the one that is to fail. */
static bool null_is_to_fail(void)
{
	guard(spinlock_irqsave)(&late_lock);
	return fail && !--fail;
}

static int null_post_send(struct ib_qp *ib_qp, const struct ib_send_wr *wr,
			  const struct ib_send_wr **bad)
{
	struct null_device *device = to_device(ib_qp->device);
	struct null_qp *qp = to_qp(ib_qp);

	/*
	 * What comes between opening memory and closing it is one test. The
	 * marks in between are for what each message takes, without the rest.
	 */
	if (wr->opcode == IB_WR_REG_MR) {
		device->posts = 0;
		MARK(MARK_OPEN);
	} else if (wr->opcode == IB_WR_LOCAL_INV) {
		MARK(MARK_CLOSE);
	} else if (++device->posts >= FIRST_MARKED &&
		   is_power_of_2(device->posts)) {
		MARK(MARK_POST);
	}

	for (; wr; wr = wr->next) {
		struct ib_wc wc = {
			.wr_cqe = wr->wr_cqe,
			.qp = ib_qp,
		};

		if (null_is_refused(wr)) {
			*bad = wr;
			return -EOPNOTSUPP;
		}

		if (qp->state == IB_QPS_ERR) {
			wc.status = IB_WC_WR_FLUSH_ERR;
		} else if (fail && null_is_to_fail()) {
			wc.status = IB_WC_RETRY_EXC_ERR;
			qp->state = IB_QPS_ERR;
			null_complete_late(ib_qp->send_cq, &wc);
			continue;
		} else if (qp->state == IB_QPS_RTS) {
			wc.status = null_execute(qp, wr, &wc);
			if (wc.status != IB_WC_SUCCESS)
				qp->state = IB_QPS_ERR;
		} else {
			*bad = wr;
			return -EINVAL;
		}

		if (wr->send_flags & IB_SEND_SIGNALED ||
		    wc.status != IB_WC_SUCCESS)
			null_complete(ib_qp->send_cq, &wc);
	}

	return 0;
}

static void null_flush_receive(struct null_qp *qp, struct ib_cqe *cqe)
{
	const struct ib_wc wc = {
		.wr_cqe = cqe,
		.status = IB_WC_WR_FLUSH_ERR,
		.qp = &qp->ib,
	};

	null_complete(qp->ib.recv_cq, &wc);
}

static int null_post_recv(struct ib_qp *ib_qp, const struct ib_recv_wr *wr,
			  const struct ib_recv_wr **bad)
{
	struct null_qp *qp = to_qp(ib_qp);
	struct null_receive *receive;

	for (; wr; wr = wr->next) {
		if (qp->state == IB_QPS_ERR) {
			null_flush_receive(qp, wr->wr_cqe);
			continue;
		}

		guard(spinlock_irqsave)(&qp->lock);
		if (qp->tail - qp->head > qp->mask) {
			*bad = wr;
			return -ENOMEM;
		}

		receive = &qp->receives[qp->tail++ & qp->mask];
		receive->cqe = wr->wr_cqe;
		receive->sge = wr->num_sge ? *wr->sg_list : (struct ib_sge){};
	}

	return 0;
}

/* Tells whether the next completion is to wait; else it is taken. */
static bool null_is_early(void)
{
	guard(spinlock_irqsave)(&late_lock);

	if (!late)
		return false;
	if (late_next && time_before(jiffies, late_next))
		return true;

	late_next = jiffies + LATE_BY;
	late--;
	return false;
}

static int null_poll_cq(struct ib_cq *ib_cq, int count, struct ib_wc *wc)
{
	struct null_cq *cq = to_cq(ib_cq);
	int i;

	guard(spinlock_irqsave)(&cq->lock);

	for (i = 0; i < count && cq->head != cq->tail; i++) {
		if (null_is_early())
			break;
		wc[i] = cq->ring[cq->head++ & cq->mask];
	}

	if (i < count && cq->has_cause &&
	    time_after_eq(jiffies, cq->cause_at)) {
		cq->has_cause = false;
		wc[i++] = cq->cause;
	}
	return i;
}

static int null_req_notify_cq(struct ib_cq *ib_cq,
			      enum ib_cq_notify_flags flags)
{
	struct null_cq *cq = to_cq(ib_cq);

	guard(spinlock_irqsave)(&cq->lock);
	cq->is_armed = true;
	return flags & IB_CQ_REPORT_MISSED_EVENTS && cq->head != cq->tail;
}

static int null_create_cq(struct ib_cq *ib_cq,
			  const struct ib_cq_init_attr *attr,
			  struct uverbs_attr_bundle *attrs)
{
	struct null_cq *cq = to_cq(ib_cq);
	u32 entries = roundup_pow_of_two(attr->cqe);

	spin_lock_init(&cq->lock);
	cq->mask = entries - 1;
	cq->ring = kvcalloc(entries, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring)
		return -ENOMEM;

	ib_cq->cqe = entries - 1;
	return 0;
}

static int null_destroy_cq(struct ib_cq *ib_cq, struct ib_udata *udata)
{
	kvfree(to_cq(ib_cq)->ring);
	return 0;
}

static int null_create_qp(struct ib_qp *ib_qp, struct ib_qp_init_attr *attr,
			  struct ib_udata *udata)
{
	struct null_device *device = to_device(ib_qp->device);
	struct null_qp *qp = to_qp(ib_qp);
	u32 receives = roundup_pow_of_two(max(attr->cap.max_recv_wr, 1U));
	int ret;

	if (attr->qp_type != IB_QPT_RC)
		return -EOPNOTSUPP;

	spin_lock_init(&qp->lock);
	qp->state = IB_QPS_RESET;
	qp->mask = receives - 1;
	qp->receives = kvcalloc(receives, sizeof(*qp->receives), GFP_KERNEL);
	if (!qp->receives)
		return -ENOMEM;

	/* 0 and 1 are for management. */
	ret = xa_alloc(&device->qps, &ib_qp->qp_num, qp, XA_LIMIT(2, 0xffffff),
		       GFP_KERNEL);
	if (ret)
		kvfree(qp->receives);
	return ret;
}

static int null_modify_qp(struct ib_qp *ib_qp, struct ib_qp_attr *attr,
			  int mask, struct ib_udata *udata)
{
	struct null_qp *qp = to_qp(ib_qp);

	/* All ports are number 1, and so is their LID. */
	if (mask & IB_QP_AV &&
	    (attr->ah_attr.type != RDMA_AH_ATTR_TYPE_IB ||
	     rdma_ah_get_dlid(&attr->ah_attr) != 1 ||
	     rdma_ah_get_port_num(&attr->ah_attr) != 1))
		return -EINVAL;
	if (mask & IB_QP_DEST_QPN)
		qp->peer = attr->dest_qp_num;
	if (!(mask & IB_QP_STATE))
		return 0;
	if (!ib_modify_qp_is_ok(qp->state, attr->qp_state, IB_QPT_RC, mask))
		return -EINVAL;

	qp->state = attr->qp_state;
	if (qp->state != IB_QPS_ERR)
		return 0;

	while (qp->head != qp->tail)
		null_flush_receive(qp,
				   qp->receives[qp->head++ & qp->mask].cqe);
	return 0;
}

static int null_query_qp(struct ib_qp *ib_qp, struct ib_qp_attr *attr,
			 int mask, struct ib_qp_init_attr *init_attr)
{
	attr->qp_state = to_qp(ib_qp)->state;
	attr->cur_qp_state = attr->qp_state;
	return 0;
}

static int null_destroy_qp(struct ib_qp *ib_qp, struct ib_udata *udata)
{
	xa_erase(&to_device(ib_qp->device)->qps, ib_qp->qp_num);
	kvfree(to_qp(ib_qp)->receives);
	return 0;
}

static int null_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int null_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static struct ib_mr *null_alloc_mr(struct ib_pd *pd, enum ib_mr_type type,
				   u32 pages)
{
	struct null_mr *mr;
	u32 number;
	int ret;

	if (pages > PAGES_MAX)
		return ERR_PTR(-EINVAL);

	mr = kzalloc_flex(*mr, pages, pages);
	if (!mr)
		return ERR_PTR(-ENOMEM);

	mr->pages_max = pages;
	ret = xa_alloc(&to_device(pd->device)->regions, &number, mr,
		       XA_LIMIT(1, 0xffffff), GFP_KERNEL);
	if (ret) {
		kfree(mr);
		return ERR_PTR(ret);
	}

	mr->ib.lkey = number << 8;
	mr->ib.rkey = number << 8;
	return &mr->ib;
}

static int null_set_page(struct ib_mr *ib_mr, u64 address)
{
	struct null_mr *mr = container_of(ib_mr, struct null_mr, ib);

	if (mr->n_pages == mr->pages_max)
		return -ENOMEM;

	mr->pages[mr->n_pages++] = address;
	return 0;
}

static int null_map_mr_sg(struct ib_mr *mr, struct scatterlist *list,
			  int entries, unsigned int *offset)
{
	container_of(mr, struct null_mr, ib)->n_pages = 0;
	return ib_sg_to_pages(mr, list, entries, offset, null_set_page);
}

static int null_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	xa_erase(&to_device(mr->device)->regions, mr->rkey >> 8);
	kfree(container_of(mr, struct null_mr, ib));
	return 0;
}

/* ib_core takes a device without them for one that has no kernel verbs. */
static struct ib_mr *null_get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static struct ib_mr *null_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
				      u64 address, int access,
				      struct ib_dmah *dmah,
				      struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int null_query_device(struct ib_device *device,
			     struct ib_device_attr *attr,
			     struct ib_udata *udata)
{
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_qp = 65536;
	attr->max_qp_wr = DEPTH_MAX;
	attr->kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	if (!no_registration)
		attr->device_cap_flags = IB_DEVICE_MEM_MGT_EXTENSIONS;
	attr->max_send_sge = 1;
	attr->max_recv_sge = 1;
	attr->max_sge_rd = 1;
	attr->max_cq = 65536;
	attr->max_cqe = 2 * DEPTH_MAX;
	attr->max_mr = 65536;
	attr->max_pd = 65536;
	attr->max_qp_rd_atom = 16;
	attr->max_qp_init_rd_atom = 16;
	attr->atomic_cap = atomics ? IB_ATOMIC_HCA : IB_ATOMIC_NONE;
	attr->max_fast_reg_page_list_len = PAGES_MAX;
	attr->max_pkeys = 1;
	return 0;
}

static int null_query_port(struct ib_device *device, u32 port,
			   struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = message_max;
	attr->lid = port;
	attr->active_width = IB_WIDTH_1X;
	attr->active_speed = IB_SPEED_SDR;
	return 0;
}

static int null_query_gid(struct ib_device *device, u32 port, int index,
			  union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = device->node_guid;
	return 0;
}

static int null_query_pkey(struct ib_device *device, u32 port, u16 index,
			   u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static int null_get_port_immutable(struct ib_device *device, u32 port,
				   struct ib_port_immutable *immutable)
{
	/* InfiniBand without management. */
	immutable->gid_tbl_len = 1;
	immutable->pkey_tbl_len = 1;
	immutable->core_cap_flags = RDMA_CORE_CAP_PROT_IB;
	return 0;
}

static enum rdma_link_layer null_get_link_layer(struct ib_device *device,
						u32 port)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static const struct ib_device_ops null_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,

	.alloc_mr = null_alloc_mr,
	.alloc_pd = null_alloc_pd,
	.create_cq = null_create_cq,
	.create_qp = null_create_qp,
	.dealloc_pd = null_dealloc_pd,
	.dereg_mr = null_dereg_mr,
	.destroy_cq = null_destroy_cq,
	.destroy_qp = null_destroy_qp,
	.get_dma_mr = null_get_dma_mr,
	.get_link_layer = null_get_link_layer,
	.get_port_immutable = null_get_port_immutable,
	.map_mr_sg = null_map_mr_sg,
	.modify_qp = null_modify_qp,
	.poll_cq = null_poll_cq,
	.post_recv = null_post_recv,
	.post_send = null_post_send,
	.query_device = null_query_device,
	.query_gid = null_query_gid,
	.query_pkey = null_query_pkey,
	.query_port = null_query_port,
	.query_qp = null_query_qp,
	.reg_user_mr = null_reg_user_mr,
	.req_notify_cq = null_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_cq, null_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, null_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, null_qp, ib),
};

static struct null_device *null_register_device(unsigned int number)
{
	struct null_device *device = ib_alloc_device(null_device, ib);
	char name[IB_DEVICE_NAME_MAX];
	int ret;

	if (!device)
		return ERR_PTR(-ENOMEM);

	xa_init_flags(&device->qps, XA_FLAGS_ALLOC);
	xa_init_flags(&device->regions, XA_FLAGS_ALLOC);
	device->ib.node_type = RDMA_NODE_IB_CA;
	device->ib.node_guid = cpu_to_be64(number + 1);
	device->ib.phys_port_cnt = 1;
	device->ib.num_comp_vectors = 1;
	device->ib.local_dma_lkey = 0;
	ib_set_device_ops(&device->ib, &null_ops);

	snprintf(name, sizeof(name), "null%u", number);
	ret = ib_register_device(&device->ib, name,
				 on_bus ? &on_bus->dev : NULL);
	if (ret) {
		ib_dealloc_device(&device->ib);
		return ERR_PTR(ret);
	}

	return device;
}

static int null_create_on_bus(void)
{
	static struct device_dma_parameters parameters;
	int ret;

	on_bus = faux_device_create("krdma_null", NULL, NULL);
	if (!on_bus)
		return -ENODEV;

	on_bus->dev.dma_parms = &parameters;
	ret = dma_coerce_mask_and_coherent(&on_bus->dev, DMA_BIT_MASK(64));
	if (ret)
		faux_device_destroy(on_bus);
	return ret;
}

static void null_unregister_devices(unsigned int count)
{
	while (count--) {
		ib_unregister_device(&all[count]->ib);
		xa_destroy(&all[count]->qps);
		xa_destroy(&all[count]->regions);
		ib_dealloc_device(&all[count]->ib);
	}

	if (on_bus)
		faux_device_destroy(on_bus);
}

static int __init null_init(void)
{
	unsigned int i;
	int ret;

	if (devices > DEVICES_MAX)
		return -EINVAL;

	if (dma) {
		ret = null_create_on_bus();
		if (ret)
			return ret;
	}

	for (i = 0; i < devices; i++) {
		all[i] = null_register_device(i);
		if (IS_ERR(all[i])) {
			null_unregister_devices(i);
			return PTR_ERR(all[i]);
		}
	}

	return 0;
}
module_init(null_init);

static void __exit null_exit(void)
{
	null_unregister_devices(devices);
}
module_exit(null_exit);
