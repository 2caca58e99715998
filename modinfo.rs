// SPDX-License-Identifier: GPL-2.0

//! Fields that `modinfo` shows: what C has `MODULE_INFO()` for.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

/// Makes an array of a string of `N` bytes, as the section `.modinfo` needs it.
///
/// For constants only: it panics while the module is compiled, if at all.
pub(crate) const fn bytes<const N: usize>(text: &str) -> [u8; N] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => panic!(),
    }
}

/// Puts a field, written as `name=value` with a NUL at its end, into the section `.modinfo`.
///
/// Takes literals, which are concatenated.
macro_rules! modinfo {
    ($($part:expr),+) => {
        const _: () = {
            const TEXT: &str = ::core::concat!($($part),+);

            // As `module!` has it. Plain `#[used]` means `linker` to newer compilers, and then the
            // section is a second one of this name, with other flags; modpost reads but one.
            #[link_section = ".modinfo"]
            #[used(compiler)]
            static FIELD: [u8; TEXT.len()] = $crate::modinfo::bytes(TEXT);
        };
    };
}
pub(crate) use modinfo;
