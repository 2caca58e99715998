// SPDX-License-Identifier: GPL-2.0

//! The C side: the declarations of `ib_core` that bindgen generates during the build, and C
//! strings.
//!
//! The types are generated for this module and are distinct from those of the same name in
//! `kernel::bindings`.

use kernel::{
    ffi,
    prelude::*,
    str::BStr, //
};

pub(crate) use self::generated::*;

#[allow(
    clippy::all,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    reason = "generated from C headers, whose names and layout are not ours to choose"
)]
#[cfg_attr(
    CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES,
    allow(
        unnecessary_transmutes,
        reason = "generated, for the whole range of compilers"
    )
)]
mod generated {
    use super::ffi;
    use pin_init::{
        MaybeZeroable,
        Zeroable, //
    };

    // The kernel crate, too, maps these to pointer-sized integers by hand; bindgen leaves them out.
    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    include!(env!("KRDMA_SMOKE_BINDINGS"));

    // SAFETY: It is nothing but its storage.
    unsafe impl<T: Zeroable> Zeroable for __BindgenBitfieldUnit<T> {}
}

/// Which `ib_core` the bindings are of, and the proof that they are laid out as in C; see
/// `scripts/ib_core.py`.
pub(crate) mod ib_core {
    use super::generated::*;

    /// Asserts that a structure, or a member with its offset, is as the C compiler says.
    macro_rules! layout {
        ($type:ident, $size:literal) => {
            const _: () = assert!(
                size_of::<$type>() == $size,
                concat!("bindgen and the C compiler lay out ", stringify!($type), " differently")
            );
        };
        ($type:ident . $($member:ident).+, $offset:literal, $size:literal) => {
            const _: () = {
                const fn size<S, M>(_member: fn(*const S) -> *const M) -> usize {
                    size_of::<M>()
                }

                assert!(
                    core::mem::offset_of!($type, $($member).+) == $offset
                        // SAFETY: It is not called.
                        && size(|s: *const $type| unsafe { &raw const (*s).$($member).+ }) == $size,
                    concat!(
                        "bindgen and the C compiler lay out ",
                        stringify!($type.$($member).+),
                        " differently"
                    )
                );
            };
        };
    }

    include!(env!("KRDMA_SMOKE_IB_CORE"));
}

/// Returns the bytes of a C string, without its NUL.
///
/// Unlike with [`CStr`], there is no arithmetic on the length, which might overflow and panic as
/// far as the compiler knows.
///
/// # Safety
///
/// `string` must be NUL-terminated, and neither be freed nor changed for `'a`.
pub(crate) unsafe fn c_string<'a>(string: *const c_char) -> &'a BStr {
    // SAFETY: By the safety requirements; `strlen()` counts the bytes before the NUL.
    BStr::from_bytes(unsafe {
        core::slice::from_raw_parts(string.cast(), kernel::bindings::strlen(string))
    })
}
