// SPDX-License-Identifier: GPL-2.0

//! String parameters of the module.
//!
//! The `params` of [`module!`] are integers and booleans only. This adds what C declares by
//! `module_param(name, charp, 0444)` and `MODULE_PARM_DESC()`.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use crate::bindings::c_string;
use core::cell::UnsafeCell;
use kernel::{
    bindings,
    module_param::KernelParam,
    prelude::*,
    str::{
        as_char_ptr_in_const_context,
        BStr, //
    },
};

/// The value of a string parameter: the `char *` that `param_ops_charp` works on.
///
/// # Invariants
///
/// Points to a NUL-terminated string that lives as long as the module.
#[repr(transparent)]
pub(crate) struct StringParameter(UnsafeCell<*const c_char>);

// SAFETY: `param_set_charp()` writes the value while the module's arguments are parsed, before any
// other code of the module runs. With the permission 0444 nobody writes it later.
unsafe impl Sync for StringParameter {}

impl StringParameter {
    /// Makes the parameter with the value that it has when it is not given.
    pub(crate) const fn new(default: &'static CStr) -> Self {
        // INVARIANT: The default is such a string.
        Self(UnsafeCell::new(as_char_ptr_in_const_context(default)))
    }

    /// Returns the value: what was given at load time, or the default.
    ///
    /// At most 1024 bytes (`param_set_charp()`), in no particular encoding.
    pub(crate) fn value(&'static self) -> &'static BStr {
        // SAFETY: By the type invariant, which `param_set_charp()` keeps: its copy is freed when
        // the module has been unloaded (`module_destroy_params()`).
        unsafe { c_string(*self.0.get()) }
    }
}

/// Makes the entry of a parameter in the section `__param`.
pub(crate) const fn kernel_param(
    name: &'static CStr,
    parameter: &'static StringParameter,
) -> KernelParam {
    KernelParam::new(bindings::kernel_param {
        name: as_char_ptr_in_const_context(name),
        mod_: (&raw const bindings::__this_module).cast_mut(),
        ops: &raw const bindings::param_ops_charp,
        perm: 0o444,
        // Not a parameter of an initcall level, as in `module_param()`.
        level: -1,
        flags: 0,
        __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
            arg: parameter.0.get().cast(),
        },
    })
}

// The functions that panic are for constants only: they fail while the module is compiled.

/// Makes an array of a string of `N` bytes, as the section `.modinfo` needs it.
pub(crate) const fn modinfo<const N: usize>(text: &str) -> [u8; N] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => panic!(),
    }
}

/// Makes the name of a parameter, which C wants NUL-terminated.
pub(crate) const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!(),
    }
}

/// Declares a string parameter, which everybody can read in sysfs and which is set at load time
/// only.
///
/// ```ignore
/// string_parameter!(greeting = c"hello", "What to say");
/// pr_info!("{}\n", greeting.value());
/// ```
macro_rules! string_parameter {
    ($name:ident = $default:literal, $description:literal) => {
        #[expect(non_upper_case_globals, reason = "named as the user types it")]
        static $name: $crate::param::StringParameter =
            $crate::param::StringParameter::new($default);

        const _: () = {
            // The spelling of these fields is dictated by modinfo(8).
            const TYPE: &str = ::core::concat!("parmtype=", ::core::stringify!($name), ":charp\0");
            const PARM: &str =
                ::core::concat!("parm=", ::core::stringify!($name), ":", $description, "\0");

            #[link_section = ".modinfo"]
            #[used]
            static MODINFO_TYPE: [u8; TYPE.len()] = $crate::param::modinfo(TYPE);

            #[link_section = ".modinfo"]
            #[used]
            static MODINFO_PARM: [u8; PARM.len()] = $crate::param::modinfo(PARM);

            #[link_section = "__param"]
            #[used]
            static KERNEL_PARAM: ::kernel::module_param::KernelParam = $crate::param::kernel_param(
                $crate::param::name(::core::concat!(::core::stringify!($name), "\0")),
                &$name,
            );
        };
    };
}
pub(crate) use string_parameter;
