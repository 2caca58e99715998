// SPDX-License-Identifier: GPL-2.0
/*
 * How the C compiler lays out what the Rust code touches of ib_core. It is
 * compiled to assembly only; scripts/ib_core.py compares it with the bindings
 * and with the types of ib_core itself.
 */

#include <linux/kbuild.h>

#include "bindings_helper.h"

#define LAYOUT(kind, name, offset, size)				\
	asm volatile("\n.ascii \"->" kind " " #name " %0 %1\""		\
		     : : "i" (offset), "i" (size))

#define STRUCT(type) LAYOUT("struct", type, 0, sizeof(struct type))

/* One that drivers know and ib_core does not, so that it can differ unnoticed. */
#define DRIVER_STRUCT(type) LAYOUT("driver", type, 0, sizeof(struct type))

#define MEMBER(type, member)						\
	LAYOUT("member", type.member, offsetof(struct type, member),	\
	       sizeof_field(struct type, member))

/* One that is inside an anonymous one, for which bindgen makes up a name. */
#define INNER_MEMBER(type, member)					\
	LAYOUT("inner", type.member, offsetof(struct type, member),	\
	       sizeof_field(struct type, member))

/* One that is inside the first of them, which bindgen numbers. */
#define ANONYMOUS_MEMBER(type, member)					\
	LAYOUT("anonymous", type.member, offsetof(struct type, member),	\
	       sizeof_field(struct type, member))

int main(void)
{
	STRUCT(ib_client);
	MEMBER(ib_client, name);
	MEMBER(ib_client, add);
	MEMBER(ib_client, remove);
	MEMBER(ib_client, rename);

	MEMBER(ib_device, name);
	MEMBER(ib_device, num_comp_vectors);
	MEMBER(ib_device, ops);
	MEMBER(ib_device, attrs);
	MEMBER(ib_device, node_type);
	MEMBER(ib_device, phys_port_cnt);
	MEMBER(ib_device, dma_device);
	MEMBER(ib_device, refcount);
	INNER_MEMBER(ib_device, dev);
	MEMBER(device, kobj);
	MEMBER(kobject, name);

	STRUCT(ib_cq_init_attr);
	MEMBER(ib_cq_init_attr, cqe);
	MEMBER(ib_cq_init_attr, comp_vector);
	MEMBER(ib_cq_init_attr, flags);

	STRUCT(ib_qp_init_attr);
	MEMBER(ib_qp_init_attr, event_handler);
	MEMBER(ib_qp_init_attr, send_cq);
	MEMBER(ib_qp_init_attr, recv_cq);
	MEMBER(ib_qp_init_attr, cap);
	MEMBER(ib_qp_init_attr, sq_sig_type);
	MEMBER(ib_qp_init_attr, qp_type);

	STRUCT(ib_qp_cap);
	MEMBER(ib_qp_cap, max_send_wr);
	MEMBER(ib_qp_cap, max_recv_wr);
	MEMBER(ib_qp_cap, max_send_sge);
	MEMBER(ib_qp_cap, max_recv_sge);
	MEMBER(ib_qp_cap, max_inline_data);
	MEMBER(ib_qp_cap, max_rdma_ctxs);

	MEMBER(ib_qp, qp_num);
	MEMBER(ib_qp, device);
	MEMBER(ib_event, event);

	MEMBER(ib_device_ops, post_send);
	MEMBER(ib_device_ops, post_recv);

	MEMBER(ib_device_attr, max_qp_wr);
	MEMBER(ib_device_attr, device_cap_flags);
	MEMBER(ib_device_attr, max_cqe);
	MEMBER(ib_device_attr, max_fast_reg_page_list_len);
	MEMBER(ib_device_attr, max_qp_init_rd_atom);
	MEMBER(ib_device_attr, max_qp_rd_atom);
	MEMBER(ib_device_attr, atomic_cap);

	STRUCT(ib_port_attr);
	MEMBER(ib_port_attr, state);
	MEMBER(ib_port_attr, active_mtu);
	MEMBER(ib_port_attr, gid_tbl_len);
	MEMBER(ib_port_attr, max_msg_sz);
	MEMBER(ib_port_attr, lid);

	MEMBER(ib_gid_attr, gid);
	MEMBER(ib_gid_attr, gid_type);

	STRUCT(ib_qp_attr);
	MEMBER(ib_qp_attr, qp_state);
	MEMBER(ib_qp_attr, path_mtu);
	MEMBER(ib_qp_attr, rq_psn);
	MEMBER(ib_qp_attr, sq_psn);
	MEMBER(ib_qp_attr, dest_qp_num);
	MEMBER(ib_qp_attr, qp_access_flags);
	MEMBER(ib_qp_attr, ah_attr);
	MEMBER(ib_qp_attr, pkey_index);
	MEMBER(ib_qp_attr, max_rd_atomic);
	MEMBER(ib_qp_attr, max_dest_rd_atomic);
	MEMBER(ib_qp_attr, min_rnr_timer);
	MEMBER(ib_qp_attr, port_num);
	MEMBER(ib_qp_attr, timeout);
	MEMBER(ib_qp_attr, retry_cnt);
	MEMBER(ib_qp_attr, rnr_retry);

	STRUCT(rdma_ah_attr);
	MEMBER(rdma_ah_attr, grh);
	MEMBER(rdma_ah_attr, port_num);
	MEMBER(rdma_ah_attr, ah_flags);
	MEMBER(rdma_ah_attr, type);
	ANONYMOUS_MEMBER(rdma_ah_attr, ib);
	ANONYMOUS_MEMBER(rdma_ah_attr, roce);

	MEMBER(ib_global_route, dgid);
	MEMBER(ib_global_route, sgid_index);
	MEMBER(ib_global_route, hop_limit);

	STRUCT(roce_ah_attr);
	MEMBER(roce_ah_attr, dmac);

	STRUCT(ib_ah_attr);
	MEMBER(ib_ah_attr, dlid);
	MEMBER(ib_ah_attr, src_path_bits);

	MEMBER(ib_pd, local_dma_lkey);
	MEMBER(ib_mr, lkey);
	MEMBER(ib_mr, rkey);
	MEMBER(ib_mr, iova);

	MEMBER(uts_namespace, name);
	MEMBER(new_utsname, release);

	STRUCT(ib_sge);
	MEMBER(ib_sge, addr);
	MEMBER(ib_sge, length);
	MEMBER(ib_sge, lkey);

	STRUCT(ib_cqe);
	MEMBER(ib_cqe, done);

	STRUCT(ib_send_wr);
	MEMBER(ib_send_wr, next);
	ANONYMOUS_MEMBER(ib_send_wr, wr_cqe);
	MEMBER(ib_send_wr, sg_list);
	MEMBER(ib_send_wr, num_sge);
	MEMBER(ib_send_wr, opcode);
	MEMBER(ib_send_wr, send_flags);
	MEMBER(ib_send_wr, ex);
	MEMBER(ib_send_wr, ex.imm_data);
	MEMBER(ib_send_wr, ex.invalidate_rkey);

	STRUCT(ib_rdma_wr);
	MEMBER(ib_rdma_wr, wr);
	MEMBER(ib_rdma_wr, remote_addr);
	MEMBER(ib_rdma_wr, rkey);

	DRIVER_STRUCT(ib_atomic_wr);
	MEMBER(ib_atomic_wr, wr);
	MEMBER(ib_atomic_wr, remote_addr);
	MEMBER(ib_atomic_wr, compare_add);
	MEMBER(ib_atomic_wr, swap);
	MEMBER(ib_atomic_wr, rkey);

	STRUCT(ib_reg_wr);
	MEMBER(ib_reg_wr, wr);
	MEMBER(ib_reg_wr, mr);
	MEMBER(ib_reg_wr, key);
	MEMBER(ib_reg_wr, access);

	STRUCT(ib_recv_wr);
	MEMBER(ib_recv_wr, next);
	ANONYMOUS_MEMBER(ib_recv_wr, wr_cqe);
	MEMBER(ib_recv_wr, sg_list);
	MEMBER(ib_recv_wr, num_sge);

	STRUCT(ib_wc);
	ANONYMOUS_MEMBER(ib_wc, wr_cqe);
	MEMBER(ib_wc, status);
	MEMBER(ib_wc, opcode);
	MEMBER(ib_wc, vendor_err);
	MEMBER(ib_wc, byte_len);
	MEMBER(ib_wc, qp);
	MEMBER(ib_wc, ex);
	MEMBER(ib_wc, ex.imm_data);
	MEMBER(ib_wc, wc_flags);

	return 0;
}
