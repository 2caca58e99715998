// SPDX-License-Identifier: GPL-2.0

//! Parameters of the module that are shown in sysfs, strings and booleans among them.
//!
//! [`module!`] shows none, and knows integers only, before Linux 7.3. This is what C declares by
//! `module_param(name, charp, 0444)` and its like, and `MODULE_PARM_DESC()`.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use crate::bindings::c_string;
use core::cell::UnsafeCell;
use kernel::{
    bindings::{
        self,
        kernel_param_ops, //
    },
    module_param::KernelParam,
    prelude::*,
    str::{
        as_char_ptr_in_const_context,
        BStr, //
    },
};

/// A type that a parameter can have.
///
/// # Safety
///
/// `OPS` must work on a value of this type.
pub(crate) unsafe trait Kind {
    /// How C parses, prints and frees the value.
    const OPS: *const kernel_param_ops;
}

/// The value of a string parameter.
pub(crate) type Charp = *const c_char;

// SAFETY: `param_set_charp()` and its like work on a `char *`.
unsafe impl Kind for Charp {
    const OPS: *const kernel_param_ops = &raw const bindings::param_ops_charp;
}

// SAFETY: `param_set_bool()` and its like work on a `bool`, to which they write 0 or 1.
unsafe impl Kind for bool {
    const OPS: *const kernel_param_ops = &raw const bindings::param_ops_bool;
}

// SAFETY: `param_set_int()` and its like work on an `int`.
unsafe impl Kind for c_int {
    const OPS: *const kernel_param_ops = &raw const bindings::param_ops_int;
}

// SAFETY: `param_set_uint()` and its like work on an `unsigned int`.
unsafe impl Kind for c_uint {
    const OPS: *const kernel_param_ops = &raw const bindings::param_ops_uint;
}

/// A type whose values are copied; all but that of strings.
pub(crate) trait Plain: Kind + Copy {}

impl Plain for bool {}
impl Plain for c_int {}
impl Plain for c_uint {}

/// The value of a parameter.
///
/// # Invariants
///
/// A [`Charp`] points to a NUL-terminated string that lives as long as the module.
#[repr(transparent)]
pub(crate) struct Parameter<T: Kind>(UnsafeCell<T>);

// SAFETY: The `set` of the `kernel_param_ops` writes the value while the module's arguments are
// parsed, before any other code of the module runs. With the permission 0444 nobody writes it later.
unsafe impl<T: Kind> Sync for Parameter<T> {}

impl<T: Plain> Parameter<T> {
    /// Makes the parameter with the value that it has when it is not given.
    pub(crate) const fn new(default: T) -> Self {
        Self(UnsafeCell::new(default))
    }

    /// Returns the value: what was given at load time, or the default.
    pub(crate) fn value(&self) -> T {
        // SAFETY: Nobody writes it any more; see `Sync`.
        unsafe { *self.0.get() }
    }
}

impl Parameter<Charp> {
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
pub(crate) const fn kernel_param<T: Kind>(
    name: &'static CStr,
    parameter: &'static Parameter<T>,
) -> KernelParam {
    KernelParam::new(bindings::kernel_param {
        name: as_char_ptr_in_const_context(name),
        mod_: (&raw const bindings::__this_module).cast_mut(),
        ops: T::OPS,
        perm: 0o444,
        // Not a parameter of an initcall level, as in `module_param()`.
        level: -1,
        flags: 0,
        __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
            arg: parameter.0.get().cast(),
        },
    })
}

/// Makes the name of a parameter, which C wants NUL-terminated.
///
/// For constants only: it panics while the module is compiled, if at all.
pub(crate) const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!(),
    }
}

/// Declares a parameter, which everybody can read in sysfs and which is set at load time only.
///
/// ```ignore
/// parameter!(greeting: charp = c"hello", "What to say");
/// parameter!(loud: bool = false, "Say it loud");
/// parameter!(times: uint = 1, "How often");
/// pr_info!("{}\n", greeting.value());
/// ```
macro_rules! parameter {
    ($name:ident: charp = $default:expr, $description:literal) => {
        $crate::param::parameter!(
            @ $name, "charp", $crate::param::Charp, $default, $description
        );
    };
    ($name:ident: bool = $default:literal, $description:literal) => {
        $crate::param::parameter!(
            @ $name, "bool", bool, $default, $description
        );
    };
    ($name:ident: int = $default:literal, $description:literal) => {
        $crate::param::parameter!(
            @ $name, "int", ::kernel::ffi::c_int, $default, $description
        );
    };
    ($name:ident: uint = $default:literal, $description:literal) => {
        $crate::param::parameter!(
            @ $name, "uint", ::kernel::ffi::c_uint, $default, $description
        );
    };
    (@ $name:ident, $kind:literal, $type:ty, $default:expr, $description:literal) => {
        #[expect(non_upper_case_globals, reason = "named as the user types it")]
        static $name: $crate::param::Parameter<$type> =
            $crate::param::Parameter::<$type>::new($default);

        const _: () = {
            // The spelling of these fields is dictated by modinfo(8).
            $crate::modinfo::modinfo!("parmtype=", ::core::stringify!($name), ":", $kind, "\0");
            $crate::modinfo::modinfo!("parm=", ::core::stringify!($name), ":", $description, "\0");

            #[link_section = "__param"]
            #[used(compiler)]
            static KERNEL_PARAM: ::kernel::module_param::KernelParam = $crate::param::kernel_param(
                $crate::param::name(::core::concat!(::core::stringify!($name), "\0")),
                &$name,
            );
        };
    };
}
pub(crate) use parameter;
