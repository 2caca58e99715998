// SPDX-License-Identifier: GPL-2.0
/*
 * Ports, and the addresses by which one is reached from another.
 */

#include "krdma_smoke_c.h"

#include <linux/etherdevice.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

/* What rdma_read_gid_l2_fields() has for no VLAN. */
#define NO_VLAN		0xffff

/* Enough for a local link, and what rdma_cm has for it at least. */
#define HOP_LIMIT	64

enum gid_kind {
	GID_IPV4,
	GID_IPV6,
	GID_LINK_LOCAL,
	GID_KINDS,
};

static int port_query(struct port *port, struct ib_device *device, u32 number)
{
	int ret;

	memset(&port->attr, 0, sizeof(port->attr));
	ret = ib_query_port(device, number, &port->attr);
	if (ret)
		return ret;

	port->device = device;
	port->number = number;
	port->is_ethernet = rdma_port_get_link_layer(device, number) ==
			    IB_LINK_LAYER_ETHERNET;
	return 0;
}

static int port_failed(struct failure *failure, enum failure_kind kind,
		       u32 number, int error)
{
	failure->kind = kind;
	failure->number = number;
	failure->error = error;
	return -ENODEV;
}

/* Finds the port that is wanted, or the first one that is active. */
int port_find(struct port *port, struct ib_device *device, u32 wanted,
	      struct failure *failure)
{
	u32 number = wanted ?: 1;
	u32 last = wanted ?: device->phys_port_cnt;
	int ret;

	if (wanted > device->phys_port_cnt)
		return port_failed(failure, FAILURE_NO_SUCH_PORT,
				   device->phys_port_cnt, 0);

	for (; number <= last; number++) {
		ret = port_query(port, device, number);
		if (ret)
			return port_failed(failure, FAILURE_PORT_QUERY, 0, ret);
		if (port->attr.state == IB_PORT_ACTIVE)
			return 0;
	}

	return port_failed(failure, FAILURE_PORT_DOWN, wanted, 0);
}

static int port_address(const struct port *port, u32 index,
			struct address *address)
{
	const struct ib_gid_attr *entry;
	int ret = 0;

	if (index > U8_MAX)
		return -EINVAL;

	entry = rdma_get_gid_attr(port->device, port->number, index);
	if (IS_ERR(entry))
		return PTR_ERR(entry);

	address->gid = entry->gid;
	address->gid_index = index;
	address->is_roce_v2 = entry->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP;
	address->lid = port->attr.lid;
	eth_zero_addr(address->mac);
	address->vlan = NO_VLAN;
	if (port->is_ethernet)
		ret = rdma_read_gid_l2_fields(entry, &address->vlan,
					      address->mac);

	rdma_put_gid_attr(entry);
	return ret;
}

static enum gid_kind gid_kind(const union ib_gid *gid)
{
	const struct in6_addr *ip = (const struct in6_addr *)gid;

	if (ipv6_addr_v4mapped(ip))
		return GID_IPV4;
	/* No more than the first 16 bits count. */
	if (gid->raw[0] == 0xfe && gid->raw[1] == 0x80)
		return GID_LINK_LOCAL;
	return GID_IPV6;
}

static u32 port_addresses_max(const struct port *port)
{
	/* A path has room for an index of eight bits. */
	return clamp(port->attr.gid_tbl_len, 0, 256);
}

/* Returns the first address of the same kind as one of another port. */
static bool port_like_address(const struct port *port,
			      const struct address *other, bool in_one_vlan,
			      struct address *address)
{
	enum gid_kind kind = gid_kind(&other->gid);
	u32 index;

	for (index = 0; index < port_addresses_max(port); index++) {
		if (!port_address(port, index, address) &&
		    address->is_roce_v2 == other->is_roce_v2 &&
		    gid_kind(&address->gid) == kind &&
		    (address->vlan == other->vlan || !in_one_vlan))
			return true;
	}

	return false;
}

/* Returns the best two addresses for RoCE v2. */
static bool port_best_addresses(const struct port *here,
				const struct port *there, bool in_one_vlan,
				struct address *from, struct address *to)
{
	enum gid_kind kind;
	u32 index;

	for (kind = GID_IPV4; kind < GID_KINDS; kind++) {
		for (index = 0; index < port_addresses_max(here); index++) {
			if (!port_address(here, index, from) &&
			    from->is_roce_v2 && gid_kind(&from->gid) == kind &&
			    port_like_address(there, from, in_one_vlan, to))
				return true;
		}
	}

	return false;
}

/* Returns two addresses, of which one may be given. */
static bool port_find_addresses(const struct port *here,
				const struct port *there, int index,
				int other_index, bool in_one_vlan,
				struct address *from, struct address *to)
{
	if (index >= 0)
		return port_like_address(there, from, in_one_vlan, to);
	if (other_index >= 0)
		return port_like_address(here, to, in_one_vlan, from);
	return port_best_addresses(here, there, in_one_vlan, from, to);
}

/* Tells whether packets for RoCE can go from one to the other. */
static bool address_is_compatible(const struct address *address,
				  const struct address *other)
{
	return address->is_roce_v2 == other->is_roce_v2 &&
	       (gid_kind(&address->gid) == GID_IPV4) ==
	       (gid_kind(&other->gid) == GID_IPV4);
}

static int no_such_gid(struct failure *failure, enum side side, u32 index)
{
	failure->kind = FAILURE_NO_SUCH_GID;
	failure->side = side;
	failure->number = index;
	return -ENOENT;
}

static int no_path(struct failure *failure)
{
	failure->kind = FAILURE_NO_PATH;
	return -ENOENT;
}

/*
 * Finds by which addresses, of the same kind, two ports reach each other: by
 * those with the given indices, as far as they are not negative.
 */
int port_addresses(const struct port *here, const struct port *there,
		   int index, int other_index, struct address *from,
		   struct address *to, struct failure *failure)
{
	bool found;

	if (here->is_ethernet != there->is_ethernet)
		return no_path(failure);

	/* On InfiniBand the first one is the port's own. */
	if (!here->is_ethernet) {
		index = max(index, 0);
		other_index = max(other_index, 0);
	}

	if (index >= 0 && port_address(here, index, from))
		return no_such_gid(failure, HERE, index);
	if (other_index >= 0 && port_address(there, other_index, to))
		return no_such_gid(failure, THERE, other_index);

	if (index >= 0 && other_index >= 0) {
		found = !here->is_ethernet || address_is_compatible(from, to);
	} else {
		/* It may be that nothing leads from one VLAN to another. */
		found = port_find_addresses(here, there, index, other_index,
					    true, from, to) ||
			port_find_addresses(here, there, index, other_index,
					    false, from, to);
	}

	return found ? 0 : no_path(failure);
}

/* Finds an address again, whose index and hardware address may have changed. */
int port_address_again(const struct port *port, struct address *address,
		       struct failure *failure)
{
	struct address now;
	u32 index;

	for (index = 0; index < port_addresses_max(port); index++) {
		/* Link-local GIDs are the same in all VLANs. */
		if (!port_address(port, index, &now) &&
		    now.is_roce_v2 == address->is_roce_v2 &&
		    now.vlan == address->vlan &&
		    !memcmp(&now.gid, &address->gid, sizeof(now.gid))) {
			*address = now;
			return 0;
		}
	}

	failure->kind = FAILURE_GID_GONE;
	failure->gid = address->gid;
	return -ENOENT;
}

/* The other port is on the same link: it is the next hop itself. */
void port_path(const struct port *port, const struct address *from,
	       const struct address *to, struct rdma_ah_attr *path)
{
	/* InfiniBand does without within a subnet, but some ports want it. */
	path->ah_flags = IB_AH_GRH;
	path->port_num = port->number;
	path->grh.dgid = to->gid;
	path->grh.sgid_index = from->gid_index;
	path->grh.hop_limit = HOP_LIMIT;

	if (port->is_ethernet) {
		path->type = RDMA_AH_ATTR_TYPE_ROCE;
		ether_addr_copy(path->roce.dmac, to->mac);
	} else {
		path->type = RDMA_AH_ATTR_TYPE_IB;
		path->ib.dlid = to->lid;
	}
}
