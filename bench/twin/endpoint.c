// SPDX-License-Identifier: GPL-2.0
/*
 * The ends of a connection, which post work requests and take their
 * completions.
 */

#include "krdma_smoke_c.h"

#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/slab.h>

/* For draining, and for the read behind messages. */
#define EXTRA_SENDS	2
#define EXTRA_RECEIVES	1

/* IB_POLL_BATCH_DIRECT: as many as C takes from the queue at a time. */
#define POLL_BUDGET	8

/* Of a memory region, if it is of more than one buffer: some are slow then. */
#define REGION_PAGES	512U

/* How long to wait for a completion before it is left to ib_drain_qp(). */
#define DRAIN_PATIENCE_NS	(100ULL * NSEC_PER_MSEC)

/* 4.096 us times two to the power of this, 0.5 s. */
#define ACK_TIMEOUT	17

/* Not the most that there is, 7: soft-RoCE takes that for without end. */
#define RETRIES		6

/* Not without end, 7: a receive that is lost is to be told. */
#define RNR_RETRIES	6

/* 0.64 ms. */
#define RNR_TIMER	12

const struct request requests[REQUESTS] = {
	{
		.name = "send_recv",
		.wr_opcode = IB_WR_SEND,
		.wc_opcode = IB_WC_SEND,
		.is_received = true,
		.is_sent = true,
	},
	{
		.name = "send_with_imm",
		.wr_opcode = IB_WR_SEND_WITH_IMM,
		.wc_opcode = IB_WC_SEND,
		.has_immediate = true,
		.is_received = true,
		.is_sent = true,
	},
	{
		.name = "rdma_write",
		.wr_opcode = IB_WR_RDMA_WRITE,
		.wc_opcode = IB_WC_RDMA_WRITE,
		.access = IB_ACCESS_REMOTE_WRITE,
		.needs_read_behind = true,
	},
	{
		.name = "rdma_write_with_imm",
		.wr_opcode = IB_WR_RDMA_WRITE_WITH_IMM,
		.wc_opcode = IB_WC_RDMA_WRITE,
		.access = IB_ACCESS_REMOTE_WRITE,
		.has_immediate = true,
		.is_received = true,
	},
	{
		.name = "rdma_read",
		.wr_opcode = IB_WR_RDMA_READ,
		.wc_opcode = IB_WC_RDMA_READ,
		.access = IB_ACCESS_REMOTE_READ,
		.is_returned = true,
	},
	{
		.name = "compare_swap",
		.wr_opcode = IB_WR_ATOMIC_CMP_AND_SWP,
		.wc_opcode = IB_WC_COMP_SWAP,
		.access = IB_ACCESS_REMOTE_ATOMIC,
		.is_atomic = true,
		.is_returned = true,
		.needs_read_behind = true,
	},
	{
		.name = "fetch_add",
		.wr_opcode = IB_WR_ATOMIC_FETCH_AND_ADD,
		.wc_opcode = IB_WC_FETCH_ADD,
		.access = IB_ACCESS_REMOTE_ATOMIC,
		.is_atomic = true,
		.is_returned = true,
		.needs_read_behind = true,
	},
};

const struct request *const send_request = &requests[0];
const struct request *const read_request = &requests[4];

static int buffer_allocate(struct buffer *buffer, struct ib_device *device,
			   size_t size)
{
	const gfp_t gfp = GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL;
	dma_addr_t address;

	size = max(PAGE_ALIGN(size), PAGE_SIZE);
	if (ib_uses_virt_dma(device)) {
		/* Such a device takes the virtual address. */
		buffer->memory = kzalloc(size, gfp);
		buffer->address = (uintptr_t)buffer->memory;
	} else {
		buffer->memory = dma_alloc_coherent(device->dma_device, size,
						    &address, gfp);
		buffer->address = address;
	}

	buffer->size = size;
	return buffer->memory ? 0 : -ENOMEM;
}

static void buffer_free(struct buffer *buffer, struct ib_device *device)
{
	if (ib_uses_virt_dma(device))
		kfree(buffer->memory);
	else
		dma_free_coherent(device->dma_device, buffer->size,
				  buffer->memory, buffer->address);
}

/* Maps buffers to a region, one behind the other. */
static int region_map(struct region *region, const struct buffer *buffers,
		      u32 count, struct failure *failure)
{
	struct scatterlist *list;
	u32 i;
	int ret;

	list = kvmalloc_array(count, sizeof(*list), GFP_KERNEL);
	if (!list)
		return failed_call(failure, "allocating memory", -ENOMEM);

	/*
	 * Drivers look at the addresses for the device only: coherent memory
	 * need not have a struct page.
	 */
	sg_init_table(list, count);
	for (i = 0; i < count; i++) {
		list[i].length = buffers[i].size;
		sg_dma_address(&list[i]) = buffers[i].address;
		sg_dma_len(&list[i]) = buffers[i].size;
	}

	ret = ib_map_mr_sg(region->mr, list, count, NULL, PAGE_SIZE);
	kvfree(list);
	if (ret == count)
		return 0;
	return failed_call(failure, "ib_map_mr_sg", ret < 0 ? ret : -EINVAL);
}

static void outstanding_init(struct outstanding *outstanding,
			     enum ib_poll_context context)
{
	atomic_set(&outstanding->count, 0);
	outstanding->is_bad = false;
	outstanding->is_waited_for = context == IB_POLL_WORKQUEUE;
	init_completion(&outstanding->over);
}

static int outstanding_begin(struct outstanding *outstanding,
			     struct entry *entries, u32 count)
{
	u32 i;

	if (atomic_read_acquire(&outstanding->count))
		return -EBUSY;

	for (i = 0; i < count; i++)
		entries[i].completions = 0;
	reinit_completion(&outstanding->over);

	/* The device, and what it causes, come after the call that posts. */
	atomic_set(&outstanding->count, count);
	return 0;
}

static void outstanding_wake(struct outstanding *outstanding)
{
	if (outstanding->is_waited_for)
		complete(&outstanding->over);
}

static void entry_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct entry *entry = container_of(wc->wr_cqe, struct entry, cqe);
	struct outstanding *outstanding = entry->outstanding;

	entry->time = ktime_get_ns();
	entry->completions++;
	entry->is_own = wc->qp == entry->qp;
	entry->status = wc->status;
	entry->opcode = wc->opcode;
	entry->vendor_err = wc->vendor_err;
	entry->byte_len = wc->byte_len;
	entry->has_immediate = wc->wc_flags & IB_WC_WITH_IMM;
	entry->immediate = be32_to_cpu(wc->ex.imm_data);

	if (wc->status != IB_WC_SUCCESS || entry->completions != 1 ||
	    !entry->is_own) {
		/* Pairs with outstanding_is_bad(). */
		smp_store_release(&outstanding->is_bad, true);
		outstanding_wake(outstanding);
	}

	/* One that completes again stands for none of the others. */
	if (entry->completions == 1 && atomic_dec_and_test(&outstanding->count))
		outstanding_wake(outstanding);
}

static void entries_init(struct entry *entries, u32 count,
			 struct outstanding *outstanding, struct ib_qp *qp)
{
	u32 i;

	for (i = 0; i < count; i++) {
		entries[i].cqe.done = entry_done;
		entries[i].outstanding = outstanding;
		entries[i].qp = qp;
	}
}

u32 endpoint_max_depth(const struct ib_device *device)
{
	const struct ib_device_attr *attrs = &device->attrs;
	u32 wrs = max(attrs->max_qp_wr, EXTRA_SENDS) - EXTRA_SENDS;
	u32 cqes = max(attrs->max_cqe, EXTRA_SENDS + EXTRA_RECEIVES) -
		   EXTRA_SENDS - EXTRA_RECEIVES;

	return min(wrs, cqes / 2);
}

static int endpoint_create_objects(struct endpoint *ep,
				   const struct endpoint_attr *attr,
				   struct failure *failure)
{
	struct ib_qp_init_attr qp_attr = {
		.event_handler = smoke_qp_event,
		.cap = {
			.max_send_wr = attr->depth + EXTRA_SENDS,
			.max_recv_wr = attr->depth + EXTRA_RECEIVES,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	int ret;

	ep->pd = ib_alloc_pd(ep->device, 0);
	if (IS_ERR(ep->pd)) {
		ret = PTR_ERR(ep->pd);
		ep->pd = NULL;
		return failed_call(failure, "ib_alloc_pd", ret);
	}

	if (ep->device->num_comp_vectors < 1)
		return failed_call(failure, "ib_alloc_cq", -EINVAL);
	ep->cq = ib_alloc_cq(ep->device, NULL, qp_attr.cap.max_send_wr +
			     qp_attr.cap.max_recv_wr, 0, attr->context);
	if (IS_ERR(ep->cq)) {
		ret = PTR_ERR(ep->cq);
		ep->cq = NULL;
		return failed_call(failure, "ib_alloc_cq", ret);
	}

	qp_attr.send_cq = ep->cq;
	qp_attr.recv_cq = ep->cq;
	ep->qp = ib_create_qp(ep->pd, &qp_attr);
	if (IS_ERR(ep->qp)) {
		ret = PTR_ERR(ep->qp);
		ep->qp = NULL;
		return failed_call(failure, "ib_create_qp", ret);
	}

	return 0;
}

/* As few as can be: each takes the device some time, also in the end. */
static int endpoint_create_regions(struct endpoint *ep,
				   const struct endpoint_attr *attr,
				   struct failure *failure)
{
	u32 most = min(ep->device->attrs.max_fast_reg_page_list_len,
		       REGION_PAGES);
	u32 pages = ep->buffers[0].size / PAGE_SIZE;
	u32 each = max(most / pages, 1U);
	u32 first, count;
	int ret;

	ep->buffers_per_region = each;
	ep->regions = kvcalloc(DIV_ROUND_UP(attr->depth, each),
			       sizeof(*ep->regions), GFP_KERNEL);
	if (!ep->regions)
		return failed_call(failure, "allocating memory", -ENOMEM);

	for (first = 0; first < attr->depth; first += count) {
		struct region *region = &ep->regions[ep->n_regions];
		struct ib_mr *mr;

		if (!attr->goes_on(attr->goes_on_context))
			return failed_call(failure, "creating an endpoint",
					   -EINTR);

		count = min(attr->depth - first, each);
		mr = ib_alloc_mr(ep->pd, IB_MR_TYPE_MEM_REG, pages * count);
		if (IS_ERR(mr))
			return failed_call(failure, "ib_alloc_mr", PTR_ERR(mr));

		/* From now on endpoint_destroy() sees to it. */
		region->mr = mr;
		ep->n_regions++;

		ret = region_map(region, &ep->buffers[first], count, failure);
		if (ret)
			return ret;
	}

	return 0;
}

static int endpoint_create_memory(struct endpoint *ep,
				  const struct endpoint_attr *attr,
				  struct failure *failure)
{
	u32 depth = attr->depth;
	int ret;

	ep->sends = kvcalloc(depth + 1, sizeof(*ep->sends), GFP_KERNEL);
	ep->receives = kvcalloc(depth, sizeof(*ep->receives), GFP_KERNEL);
	ep->send_entries = kvcalloc(depth + 1, sizeof(*ep->send_entries),
				    GFP_KERNEL);
	ep->receive_entries = kvcalloc(depth, sizeof(*ep->receive_entries),
				       GFP_KERNEL);
	ep->buffers = kvcalloc(depth + 1, sizeof(*ep->buffers), GFP_KERNEL);
	if (!ep->sends || !ep->receives || !ep->send_entries ||
	    !ep->receive_entries || !ep->buffers)
		return failed_call(failure, "allocating memory", -ENOMEM);

	outstanding_init(&ep->sending, attr->context);
	outstanding_init(&ep->receiving, attr->context);
	entries_init(ep->send_entries, depth + 1, &ep->sending, ep->qp);
	entries_init(ep->receive_entries, depth, &ep->receiving, ep->qp);

	/* The read behind messages is of a word at most. */
	for (; ep->n_buffers <= depth; ep->n_buffers++) {
		if (!attr->goes_on(attr->goes_on_context))
			return failed_call(failure, "creating an endpoint",
					   -EINTR);
		ret = buffer_allocate(&ep->buffers[ep->n_buffers], ep->device,
				      ep->n_buffers < depth ? attr->size :
							      sizeof(u64));
		if (ret)
			return failed_call(failure, "allocating memory", ret);
	}

	return attr->is_target ? endpoint_create_regions(ep, attr, failure) : 0;
}

/*
 * Tells whether the buffers of two such endpoints, each perhaps of a power of
 * two of pages, leave others as much memory as they take.
 */
bool endpoint_pair_is_affordable(const struct endpoint_attr *attr)
{
	size_t pages = max(DIV_ROUND_UP(attr->size, PAGE_SIZE), 1UL);
	size_t wanted = roundup_pow_of_two(pages) * attr->depth * 2;
	long available = si_mem_available();

	return available > 0 && wanted <= available / 2;
}

/* The caller destroys what is created. */
int endpoint_create(struct endpoint **created, struct ib_device *device,
		    const struct endpoint_attr *attr, struct failure *failure)
{
	struct endpoint *ep;
	int ret;

	ep = kzalloc_obj(*ep);
	if (!ep)
		return failed_call(failure, "allocating memory", -ENOMEM);

	ep->device = device;
	ep->context = attr->context;
	ep->depth = attr->depth;

	ret = endpoint_create_objects(ep, attr, failure);
	if (!ret)
		ret = endpoint_create_memory(ep, attr, failure);
	if (ret)
		endpoint_destroy(ep);
	else
		*created = ep;
	return ret;
}

int endpoint_outstanding(const struct endpoint *ep)
{
	return atomic_read_acquire(&ep->sending.count) +
	       atomic_read_acquire(&ep->receiving.count);
}

/* Takes what completes, until nothing is outstanding or no more comes. */
static void endpoint_take_completions(struct endpoint *ep)
{
	int count = endpoint_outstanding(ep);
	u64 since = ktime_get_ns();
	int left;

	while (count > 0 && ktime_get_ns() - since < DRAIN_PATIENCE_NS) {
		ib_process_cq_direct(ep->cq, POLL_BUDGET);

		left = endpoint_outstanding(ep);
		if (left == count) {
			schedule();
		} else {
			count = left;
			since = ktime_get_ns();
		}
	}
}

/*
 * Makes sure that nothing is outstanding. ib_drain_qp() waits a tenth of a
 * second for each queue, for somebody else to take the completions, before it
 * does so itself: it is left what does not come.
 */
static void endpoint_drain(struct endpoint *ep)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	/* From RESET there is no way to ERR. */
	if (!ep->is_used)
		return;

	if (!ib_modify_qp(ep->qp, &attr, IB_QP_STATE) &&
	    ep->context == IB_POLL_DIRECT)
		endpoint_take_completions(ep);

	if (endpoint_outstanding(ep))
		ib_drain_qp(ep->qp);
}

/* Also of an endpoint that is not complete. */
void endpoint_destroy(struct endpoint *ep)
{
	bool are_gone = true;
	struct ib_mr *mr;
	u32 i;

	endpoint_drain(ep);

	while (ep->n_regions) {
		mr = ep->regions[--ep->n_regions].mr;
		are_gone &= wire_destroyed("ib_dereg_mr", ib_dereg_mr(mr));
	}

	if (ep->qp && !wire_destroyed("ib_destroy_qp", ib_destroy_qp(ep->qp)))
		return;
	if (ep->cq)
		ib_free_cq(ep->cq);

	/* What stays goes on using the rest, which is leaked with it. */
	if (!are_gone)
		return;
	if (ep->pd)
		wire_destroyed("ib_dealloc_pd",
			       ib_dealloc_pd_user(ep->pd, NULL));

	for (i = 0; i < ep->n_buffers; i++)
		buffer_free(&ep->buffers[i], ep->device);

	kvfree(ep->regions);
	kvfree(ep->buffers);
	kvfree(ep->sends);
	kvfree(ep->receives);
	kvfree(ep->send_entries);
	kvfree(ep->receive_entries);
	kfree(ep);
}

/* What the peer may ask of the queue pair, as far as memory is open to it. */
static int endpoint_access(const struct endpoint *ep)
{
	int access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
		     IB_ACCESS_REMOTE_WRITE;

	if (ep->device->attrs.atomic_cap != IB_ATOMIC_NONE)
		access |= IB_ACCESS_REMOTE_ATOMIC;
	return access;
}

static u8 reads(u32 requester, u32 responder)
{
	return min3(requester, responder, U8_MAX);
}

/* Connects a queue pair, which is in RESET, to that of a peer. */
int qp_connect(struct ib_qp *qp, const struct qp_attr *wanted,
	       const struct port *port, const struct address *from,
	       const struct port *peer_port, const struct address *to,
	       u32 peer_number)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = port->number,
		.qp_access_flags = wanted->access,
	};
	int ret;

	ret = ib_modify_qp(qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			   IB_QP_ACCESS_FLAGS);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTR;
	port_path(port, from, to, &attr.ah_attr);
	attr.path_mtu = min(port->attr.active_mtu, peer_port->attr.active_mtu);
	attr.dest_qp_num = peer_number;
	attr.max_dest_rd_atomic = wanted->incoming_reads;
	attr.min_rnr_timer = RNR_TIMER;
	ret = ib_modify_qp(qp, &attr,
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
			   IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTS;
	attr.timeout = ACK_TIMEOUT;
	attr.retry_cnt = RETRIES;
	attr.rnr_retry = RNR_RETRIES;
	attr.max_rd_atomic = wanted->outstanding_reads;
	return ib_modify_qp(qp, &attr,
			    IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

int endpoint_connect(struct endpoint *ep, const struct port *port,
		     const struct address *from, const struct port *peer_port,
		     const struct address *to, const struct endpoint *peer,
		     struct failure *failure)
{
	const struct ib_device_attr *here = &ep->device->attrs;
	const struct ib_device_attr *there = &peer->device->attrs;
	const struct qp_attr attr = {
		.access = endpoint_access(ep),
		.incoming_reads = reads(here->max_qp_rd_atom,
					there->max_qp_init_rd_atom),
		.outstanding_reads = reads(here->max_qp_init_rd_atom,
					   there->max_qp_rd_atom),
	};
	int ret;

	ret = qp_connect(ep->qp, &attr, port, from, peer_port, to,
			 peer->qp->qp_num);
	return ret ? failed_call(failure, "ib_modify_qp", ret) : 0;
}

/* Links the first work requests, of which some are messages: the next batch. */
static void endpoint_link(struct endpoint *ep, u32 messages, u32 prepared)
{
	u32 i;

	ep->messages = messages;
	ep->prepared = prepared;
	for (i = 0; i < prepared; i++)
		ep->sends[i].send.next =
			i + 1 < prepared ? &ep->sends[i + 1].send : NULL;
}

static void endpoint_prepare_one(struct endpoint *ep, u32 index,
				 const struct request *request, size_t length,
				 const struct endpoint *peer, u32 peer_index)
{
	const struct buffer *buffer = &ep->buffers[index];
	u32 each = peer->buffers_per_region;
	const struct ib_mr *mr = peer->regions[peer_index / each].mr;
	/* The peer's buffers are all of the same size. */
	u64 remote = mr->iova + (peer_index % each) * peer->buffers[0].size;
	struct send_wr *wr = &ep->sends[index];

	memset(wr, 0, sizeof(*wr));
	wr->sge.addr = buffer->address;
	wr->sge.length = min(length, buffer->size);
	wr->sge.lkey = ep->pd->local_dma_lkey;

	wr->send.wr_cqe = &ep->send_entries[index].cqe;
	wr->send.opcode = request->wr_opcode;
	wr->send.send_flags = IB_SEND_SIGNALED;
	if (wr->sge.length) {
		wr->send.sg_list = &wr->sge;
		wr->send.num_sge = 1;
	}

	if (request->is_atomic) {
		wr->atomic.remote_addr = remote;
		wr->atomic.rkey = mr->rkey;
	} else {
		wr->rdma.remote_addr = remote;
		wr->rdma.rkey = mr->rkey;
	}
}

/* Prepares a batch of messages, and perhaps a read behind them. */
void endpoint_prepare(struct endpoint *ep, const struct request *request,
		      u32 count, size_t length, const struct endpoint *peer,
		      bool read_behind)
{
	u32 i;

	ep->request = request;
	for (i = 0; i < count; i++)
		endpoint_prepare_one(ep, i, request, length, peer, i);
	if (read_behind)
		endpoint_prepare_one(ep, count, read_request,
				     min(length, sizeof(u64)), peer, count - 1);

	endpoint_link(ep, count, count + read_behind);
}

void endpoint_prepare_receives(struct endpoint *ep, u32 count, size_t length)
{
	u32 i;

	ep->prepared_receives = count;
	for (i = 0; i < count; i++) {
		struct recv_wr *wr = &ep->receives[i];

		memset(wr, 0, sizeof(*wr));
		wr->sge.addr = ep->buffers[i].address;
		wr->sge.length = min(length, ep->buffers[i].size);
		wr->sge.lkey = ep->pd->local_dma_lkey;
		wr->wr.wr_cqe = &ep->receive_entries[i].cqe;
		if (wr->sge.length) {
			wr->wr.sg_list = &wr->sge;
			wr->wr.num_sge = 1;
		}
		if (i + 1 < count)
			wr->wr.next = &ep->receives[i + 1].wr;
	}
}

/* Opens the buffers to the peer, under new keys, for requests of one kind. */
void endpoint_prepare_registrations(struct endpoint *ep,
				    const struct request *request)
{
	int access = IB_ACCESS_LOCAL_WRITE | request->access;
	u32 i;

	if (request->needs_read_behind)
		access |= IB_ACCESS_REMOTE_READ;

	ep->request = NULL;
	for (i = 0; i < ep->n_regions; i++) {
		struct region *region = &ep->regions[i];
		struct send_wr *wr = &ep->sends[i];

		ib_update_fast_reg_key(region->mr, ++region->key);
		memset(wr, 0, sizeof(*wr));
		wr->send.wr_cqe = &ep->send_entries[i].cqe;
		wr->send.opcode = IB_WR_REG_MR;
		wr->send.send_flags = IB_SEND_SIGNALED;
		wr->reg.mr = region->mr;
		wr->reg.key = region->mr->rkey;
		wr->reg.access = access;
	}

	endpoint_link(ep, ep->n_regions, ep->n_regions);
}

/* Closes the buffers to the peer. */
void endpoint_prepare_invalidations(struct endpoint *ep)
{
	u32 i;

	ep->request = NULL;
	for (i = 0; i < ep->n_regions; i++) {
		struct send_wr *wr = &ep->sends[i];

		memset(wr, 0, sizeof(*wr));
		wr->send.wr_cqe = &ep->send_entries[i].cqe;
		wr->send.opcode = IB_WR_LOCAL_INV;
		wr->send.send_flags = IB_SEND_SIGNALED;
		wr->send.ex.invalidate_rkey = ep->regions[i].mr->rkey;
	}

	endpoint_link(ep, ep->n_regions, ep->n_regions);
}

/* Changes the key of the first read to one that opens nothing. */
void endpoint_falsify_first_key(struct endpoint *ep)
{
	ep->sends[0].rdma.rkey = ~ep->sends[0].rdma.rkey;
}

int endpoint_post(struct endpoint *ep)
{
	const struct ib_send_wr *bad;
	int ret;

	if (!ep->prepared)
		return 0;

	ret = outstanding_begin(&ep->sending, ep->send_entries, ep->prepared);
	if (!ret) {
		ep->is_used = true;
		ret = ib_post_send(ep->qp, &ep->sends[0].send, &bad);
	}
	return ret;
}

int endpoint_post_receives(struct endpoint *ep, struct failure *failure)
{
	const struct ib_recv_wr *bad;
	int ret;

	if (!ep->prepared_receives)
		return 0;

	ret = outstanding_begin(&ep->receiving, ep->receive_entries,
				ep->prepared_receives);
	if (!ret) {
		ep->is_used = true;
		ret = ib_post_recv(ep->qp, &ep->receives[0].wr, &bad);
	}
	return ret ? failed_call(failure, "ib_post_recv", ret) : 0;
}

/* Takes completions; or sleeps until everything is over, for a while. */
void endpoint_poll(struct endpoint *ep)
{
	if (ep->context == IB_POLL_DIRECT)
		ib_process_cq_direct(ep->cq, POLL_BUDGET);
	else if (!outstanding_is_over(&ep->sending))
		wait_for_completion_timeout(&ep->sending.over, HZ / 10);
	else if (!outstanding_is_over(&ep->receiving))
		wait_for_completion_timeout(&ep->receiving.over, HZ / 10);
}

/* Returns the state of the queue pair, or a negative error. */
int endpoint_state(const struct endpoint *ep)
{
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init_attr;
	int ret;

	ret = ib_query_qp(ep->qp, &attr, IB_QP_STATE, &init_attr);
	return ret ?: attr.qp_state;
}
