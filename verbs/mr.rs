// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    destroyed,
    of,
    Buffer,
    CallError,
    Consumer,
    ProtectionDomain, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    alloc::KVVec,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A memory region for fast registration, of one or more buffers: a work request opens it to the
/// peer, and another closes it again.
///
/// It has to be deregistered: dropping it does not do that, as somebody has to see to what it refers
/// to if it stays.
///
/// # Invariants
///
/// `ptr` is a memory region that `ib_alloc_mr()` returned for a protection domain that outlives it,
/// and that nobody else deregisters.
pub(super) struct MemoryRegion<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_mr>,
    key: u8,
    _pd: PhantomData<ProtectionDomain<'d, C>>,
}

impl<'d, C: Consumer> MemoryRegion<'d, C> {
    /// `SG_END`, which bindgen cannot evaluate: the last entry of a list.
    const SG_END: c_ulong = 2;

    /// Allocates a memory region by `ib_alloc_mr()`, which has room for so many pages. May sleep.
    ///
    /// # Safety
    ///
    /// The protection domain must outlive the memory region.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device's driver has no such regions, `ENOMEM`, or what that says. That it
    /// has them does not mean that they can be registered: `Capabilities::fast_registration`.
    pub(super) unsafe fn alloc(pd: &ProtectionDomain<'d, C>, pages: usize) -> Result<Self> {
        let pages = u32::try_from(pages)?;

        // SAFETY: The protection domain is valid by its type invariant.
        let ptr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;

        // INVARIANT: `ib_alloc_mr()` succeeded, the pointer goes nowhere else, and by the safety
        // requirement the protection domain outlives this.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            key: 0,
            _pd: PhantomData,
        })
    }

    /// Maps buffers to the region by `ib_map_mr_sg()`, one behind the other. May sleep.
    ///
    /// # Safety
    ///
    /// The buffers must be there for as long as somebody can use the region.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device's driver cannot map as much, or what that says; `ENOMEM`.
    pub(super) unsafe fn map(&mut self, buffers: &[Buffer<'d>]) -> Result<(), CallError> {
        let mut list =
            KVVec::with_capacity(buffers.len(), GFP_KERNEL).map_err(CallError::of_memory)?;

        for buffer in buffers {
            let mut entry: kernel::bindings::scatterlist = pin_init::zeroed();

            // Drivers look at the addresses for the device only: coherent memory need not have a
            // `struct page`. No buffer is so large that its size would not fit.
            entry.length = u32::try_from(buffer.size()).map_err(CallError::of_memory)?;
            entry.dma_address = buffer.address();

            #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
            {
                entry.dma_length = entry.length;
            }

            list.push_within_capacity(entry)
                .map_err(CallError::of_memory)?;
        }

        let count = c_int::try_from(list.len()).map_err(CallError::of_memory)?;

        match list.last_mut() {
            Some(last) => last.page_link = Self::SG_END,
            None => return Err(of("ib_map_mr_sg")(EINVAL)),
        }

        // SAFETY: The region is valid by the type invariant. The list has as many entries, the last
        // of which says so, and is used during the call only.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                self.as_raw(),
                list.as_mut_ptr().cast(),
                count,
                null_mut(),
                PAGE_SIZE as c_uint,
            )
        };

        match mapped {
            mapped if mapped == count => Ok(()),
            error if error < 0 => Err(Error::from_errno(error)),
            _ => Err(EINVAL),
        }
        .map_err(of("ib_map_mr_sg"))
    }

    /// Changes the part of the keys that consumers choose, so that keys of former registrations do
    /// not open this one: `ib_update_fast_reg_key()`.
    pub(super) fn rotate_key(&mut self) {
        self.key = self.key.wrapping_add(1);

        let mr = self.as_raw();

        // SAFETY: The region is valid by the type invariant, and its keys are for its owner to change
        // while it is not registered.
        unsafe {
            (*mr).lkey = ((*mr).lkey & !0xff) | u32::from(self.key);
            (*mr).rkey = ((*mr).rkey & !0xff) | u32::from(self.key);
        }
    }

    /// Returns the `struct ib_mr`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.ptr.as_ptr()
    }

    /// Returns the key by which the peer accesses the region.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.as_raw()).rkey }
    }

    /// Returns the address by which the peer accesses the region's first buffer; that of the next
    /// one is larger by the size of the first, and so on.
    pub(super) fn address(&self) -> u64 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.as_raw()).iova }
    }

    /// Deregisters the region by `ib_dereg_mr_user()`; tells whether it is gone, or the device keeps
    /// it. May sleep.
    pub(super) fn deregister(self) -> bool {
        // SAFETY: By the type invariant this is the only call for this region. No user data goes
        // with a kernel object.
        let ret = unsafe { bindings::ib_dereg_mr_user(self.as_raw(), null_mut()) };

        destroyed::<C>("ib_dereg_mr", ret)
    }
}
