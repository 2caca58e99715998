// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    of,
    Buffer,
    CallError,
    Consumer,
    ProtectionDomain, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    mem::zeroed,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*, //
};

/// A memory region for fast registration: a work request opens it to the peer, and another closes
/// it again.
///
/// Deregistered when dropped, by `ib_dereg_mr_user()`.
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

    /// Allocates a memory region by `ib_alloc_mr()` and maps the buffer to it by `ib_map_mr_sg()`.
    /// May sleep.
    ///
    /// # Safety
    ///
    /// The protection domain and the buffer must outlive the memory region.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` if the device's driver cannot map as much, or what that says.
    pub(super) unsafe fn new(
        pd: &ProtectionDomain<'d, C>,
        buffer: &Buffer<'d>,
    ) -> Result<Self, CallError> {
        // No buffer is as large as that.
        let size = u32::try_from(buffer.size()).map_err(of("ib_alloc_mr"))?;
        let pages = size / PAGE_SIZE as u32;

        // SAFETY: The protection domain is valid by its type invariant.
        let ptr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })
        .map_err(of("ib_alloc_mr"))?;

        // INVARIANT: `ib_alloc_mr()` succeeded, the pointer goes nowhere else, and by the safety
        // requirement the protection domain outlives this.
        let this = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM).map_err(of("ib_alloc_mr"))?,
            key: 0,
            _pd: PhantomData,
        };

        // SAFETY: All members of it may be zero.
        let mut list: kernel::bindings::scatterlist = unsafe { zeroed() };

        // One piece, of which drivers look at the addresses for the device only: coherent memory
        // need not have a `struct page`.
        list.page_link = Self::SG_END;
        list.length = size;
        list.dma_address = buffer.address();

        #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
        {
            list.dma_length = list.length;
        }

        // SAFETY: The region is valid by the type invariant. The list has one entry, and is used
        // during the call only.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                ptr,
                (&raw mut list).cast(),
                1,
                null_mut(),
                PAGE_SIZE as c_uint,
            )
        };

        match mapped {
            1 => Ok(this),
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

    /// Returns the address by which the peer accesses the region.
    pub(super) fn address(&self) -> u64 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.as_raw()).iova }
    }
}

impl<C: Consumer> Drop for MemoryRegion<'_, C> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the only call for this region. No user data goes
        // with a kernel object.
        let ret = unsafe { bindings::ib_dereg_mr_user(self.as_raw(), null_mut()) };

        // A region that stays keeps its protection domain busy; it refers to nothing of this
        // module.
        if let Err(error) = to_result(ret) {
            C::destroyed("ib_dereg_mr", Err(error));
        }
    }
}
