// SPDX-License-Identifier: GPL-2.0

//! Ports, and the addresses by which one is reached from another.

use super::{
    to_result,
    Device, //
};
use crate::bindings;
use kernel::{
    error::from_err_ptr,
    fmt,
    prelude::*, //
};

/// A port of a device, as it was when it was asked: `struct ib_port_attr`.
pub(crate) struct Port<'d> {
    device: Device<'d>,
    number: u32,
    attributes: bindings::ib_port_attr,
    is_ethernet: bool,
}

/// A port was not found.
pub(crate) enum PortError {
    /// The device has no port of that number, but this many.
    NoSuchPort(u32),
    /// The port is not active; or none is, where no number was given.
    Down(Option<u32>),
    /// `ib_query_port()` failed.
    Query(Error),
}

/// There are no addresses by which two ports reach each other.
pub(crate) enum PathError {
    /// The port has no GID with this index.
    NoSuchGid(u32),
    /// The other port has no GID with this index.
    OtherHasNoSuchGid(u32),
    /// No two addresses, or not the two that were wanted, are of the same kind.
    NotAlike,
}

impl<'d> Port<'d> {
    /// Returns the port with the number `wanted`, or else the first one that is active.
    ///
    /// # Errors
    ///
    /// See [`PortError`].
    pub(crate) fn find(device: Device<'d>, wanted: Option<u32>) -> Result<Self, PortError> {
        let count = device.ports();

        if let Some(number) = wanted {
            if number == 0 || number > count {
                return Err(PortError::NoSuchPort(count));
            }

            let port = Self::query(device, number).map_err(PortError::Query)?;

            return if port.is_active() {
                Ok(port)
            } else {
                Err(PortError::Down(wanted))
            };
        }

        let mut number = 1;

        while number <= count {
            let port = Self::query(device, number).map_err(PortError::Query)?;

            if port.is_active() {
                return Ok(port);
            }

            number = number.saturating_add(1);
        }

        Err(PortError::Down(None))
    }

    /// Asks for the state of a port that the device has, by `ib_query_port()`. May sleep.
    fn query(device: Device<'d>, number: u32) -> Result<Self> {
        let mut attributes = pin_init::zeroed::<bindings::ib_port_attr>();

        // SAFETY: The device is valid by its type invariant, and C writes to the attributes during
        // the call only.
        to_result(unsafe { bindings::ib_query_port(device.as_raw(), number, &mut attributes) })?;

        // SAFETY: As above.
        let layer = unsafe { bindings::rdma_port_get_link_layer(device.as_raw(), number) };

        Ok(Self {
            device,
            number,
            attributes,
            is_ethernet: layer == bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET,
        })
    }

    fn is_active(&self) -> bool {
        self.attributes.state == bindings::ib_port_state_IB_PORT_ACTIVE
    }

    /// Tells whether the other one is the same port.
    pub(crate) fn is(&self, other: &Port<'_>) -> bool {
        self.device.is(other.device) && self.number == other.number
    }

    /// Returns the number of the port, from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the size of the largest packet's payload in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        // `enum ib_mtu`: 1 is 256.
        128u32
            .checked_shl(self.attributes.active_mtu)
            .unwrap_or(u32::MAX)
    }

    /// Returns the size of the largest message in bytes.
    pub(crate) fn max_message_size(&self) -> u32 {
        self.attributes.max_msg_sz
    }

    /// Returns the addresses by which each of two ports can be reached from the other, of the same
    /// kind; those with the given GID indices, as far as they are given.
    ///
    /// For RoCE, entries of RoCE v2 for IPv4 addresses are taken, else for IPv6 addresses, else the
    /// link-local ones, which every port has; or the first one that is like the one that is given for
    /// the other port. In any case those come first that are in the same VLAN: it may be that nothing
    /// leads to another.
    ///
    /// # Errors
    ///
    /// See [`PathError`].
    pub(crate) fn addresses(
        &self,
        other: &Port<'_>,
        index: Option<u32>,
        other_index: Option<u32>,
    ) -> Result<(Address, Address), PathError> {
        if self.is_ethernet != other.is_ethernet {
            return Err(PathError::NotAlike);
        }

        // On InfiniBand the first one is the port's own.
        let default = (!self.is_ethernet).then_some(0);
        let given = match index.or(default) {
            Some(index) => Some(
                self.address(index)
                    .map_err(|_| PathError::NoSuchGid(index))?,
            ),
            None => None,
        };
        let other_given = match other_index.or(default) {
            Some(index) => Some(
                other
                    .address(index)
                    .map_err(|_| PathError::OtherHasNoSuchGid(index))?,
            ),
            None => None,
        };

        let find = |in_one_vlan| match (given, other_given) {
            (Some(a), Some(b)) => (!self.is_ethernet || a.is_compatible(&b)).then_some((a, b)),
            (Some(a), None) => other.like(&a, in_one_vlan).map(|b| (a, b)),
            (None, Some(b)) => self.like(&b, in_one_vlan).map(|a| (a, b)),
            (None, None) => self.best(other, in_one_vlan),
        };

        find(true)
            .or_else(|| find(false))
            .ok_or(PathError::NotAlike)
    }

    /// Returns the address that the port has now with the GID of one it had before, in the same VLAN:
    /// link-local ones are the same in all of them.
    pub(crate) fn again(&self, former: &Address) -> Option<Address> {
        self.first(|address| {
            address.gid == former.gid
                && address.is_roce_v2 == former.is_roce_v2
                && address.vlan == former.vlan
        })
    }

    /// Returns the best two addresses for RoCE v2, perhaps only of those in the same VLAN.
    fn best(&self, other: &Port<'_>, in_one_vlan: bool) -> Option<(Address, Address)> {
        for kind in [Kind::Ipv4, Kind::Ipv6, Kind::LinkLocal] {
            let pair = self.search(|a| {
                if a.is_roce_v2 && a.kind() == kind {
                    other.like(&a, in_one_vlan).map(|b| (a, b))
                } else {
                    None
                }
            });

            if pair.is_some() {
                return pair;
            }
        }

        None
    }

    /// Returns the first address that is like another port's, perhaps only of those in the same VLAN.
    fn like(&self, other: &Address, in_one_vlan: bool) -> Option<Address> {
        self.first(|address| address.is_like(other) && (address.vlan == other.vlan || !in_one_vlan))
    }

    /// Returns the first address that is good.
    fn first(&self, is_good: impl Fn(&Address) -> bool) -> Option<Address> {
        self.search(|address| is_good(&address).then_some(address))
    }

    /// Returns what is found for the first address for which something is.
    fn search<T>(&self, look: impl Fn(Address) -> Option<T>) -> Option<T> {
        // A path has room for an index of eight bits.
        let count = u32::try_from(self.attributes.gid_tbl_len)
            .unwrap_or(0)
            .min(256);
        let mut index = 0u32;

        while index < count {
            if let Some(found) = self.address(index).ok().and_then(&look) {
                return Some(found);
            }

            index = index.saturating_add(1);
        }

        None
    }

    /// Returns the address with an entry of the table of GIDs.
    fn address(&self, index: u32) -> Result<Address> {
        let gid_index = u8::try_from(index).map_err(|_| EINVAL)?;

        // SAFETY: The device is valid by its type invariant. C checks the index.
        let entry = unsafe {
            bindings::rdma_get_gid_attr(self.device.as_raw(), self.number, gid_index.into())
        };
        let entry = from_err_ptr(entry.cast_mut())?;

        let mut address = Address {
            // SAFETY: There is a reference to the entry, whose GID does not change, and is 16 bytes.
            gid: unsafe { (&raw const (*entry).gid).cast::<[u8; 16]>().read() },
            gid_index,
            // SAFETY: As above.
            is_roce_v2: unsafe { (*entry).gid_type }
                == bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
            // All that InfiniBand has; Omni-Path's may have more.
            lid: self.attributes.lid as u16,
            mac: [0; 6],
            vlan: Self::NO_VLAN,
        };

        let result = if self.is_ethernet {
            // SAFETY: There is a reference to the entry. C writes a number and six bytes.
            to_result(unsafe {
                bindings::rdma_read_gid_l2_fields(
                    entry,
                    &mut address.vlan,
                    address.mac.as_mut_ptr(),
                )
            })
        } else {
            Ok(())
        };

        // SAFETY: The reference of `rdma_get_gid_attr()` is given back, and not used any more.
        unsafe { bindings::rdma_put_gid_attr(entry) };

        result.map(|()| address)
    }

    /// Returns the attributes of the path from an address of this port to another port's.
    ///
    /// The other port is on the same link: its own hardware address is that of the next hop.
    pub(super) fn path(&self, from: &Address, to: &Address) -> bindings::rdma_ah_attr {
        let mut path = bindings::rdma_ah_attr {
            port_num: self.number,
            ..pin_init::zeroed()
        };

        // InfiniBand does without within a subnet, but there are ports that want it.
        path.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        // SAFETY: A GID is 16 bytes.
        unsafe { (&raw mut path.grh.dgid).cast::<[u8; 16]>().write(to.gid) };
        path.grh.sgid_index = from.gid_index;
        path.grh.hop_limit = Self::HOP_LIMIT;

        if self.is_ethernet {
            path.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
            path.__bindgen_anon_1.roce = bindings::roce_ah_attr { dmac: to.mac };
        } else {
            path.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
            path.__bindgen_anon_1.ib = bindings::ib_ah_attr {
                dlid: to.lid,
                src_path_bits: 0,
            };
        }

        path
    }

    /// What `rdma_read_gid_l2_fields()` has for the number of no VLAN.
    const NO_VLAN: u16 = 0xffff;

    /// Enough for a local link, and what `rdma_cm` has for it at least.
    const HOP_LIMIT: u8 = 64;

    /// Returns the code of the MTU, `enum ib_mtu`.
    pub(super) fn mtu_code(&self) -> bindings::ib_mtu {
        self.attributes.active_mtu
    }
}

/// What a GID stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ipv4,
    Ipv6,
    LinkLocal,
}

/// By what a port is reached.
///
/// Displayed as its GID, as in sysfs.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    gid: [u8; 16],
    gid_index: u8,
    is_roce_v2: bool,
    lid: u16,
    mac: [u8; 6],
    vlan: u16,
}

impl Address {
    /// Returns the index of the GID in its port's table.
    pub(crate) fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// Tells whether packets for RoCE can go from one to the other.
    fn is_compatible(&self, other: &Self) -> bool {
        self.is_roce_v2 == other.is_roce_v2
            && (self.kind() == Kind::Ipv4) == (other.kind() == Kind::Ipv4)
    }

    /// Tells whether the other one is of the same kind.
    fn is_like(&self, other: &Self) -> bool {
        self.is_roce_v2 == other.is_roce_v2 && self.kind() == other.kind()
    }

    fn kind(&self) -> Kind {
        match self.gid {
            // An IPv4-mapped IPv6 address, `::ffff:0:0/96`.
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => Kind::Ipv4,
            [0xfe, 0x80, ..] => Kind::LinkLocal,
            _ => Kind::Ipv6,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";

        for pair in self.gid.chunks_exact(2) {
            if let [high, low] = pair {
                f.write_fmt(fmt!("{separator}{high:02x}{low:02x}"))?;
                separator = ":";
            }
        }

        Ok(())
    }
}
