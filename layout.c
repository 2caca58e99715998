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

#define MEMBER(type, member)						\
	LAYOUT("member", type.member, offsetof(struct type, member),	\
	       sizeof_field(struct type, member))

/* One that is inside an anonymous one, for which bindgen makes up a name. */
#define INNER_MEMBER(type, member)					\
	LAYOUT("inner", type.member, offsetof(struct type, member),	\
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
	MEMBER(ib_event, event);

	return 0;
}
