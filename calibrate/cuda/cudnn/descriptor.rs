//! One descriptor of the backend: created, given attributes, finalized, destroyed when dropped.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use cudarc::cudnn::sys;

use super::api::{Api, Raw};
use crate::cuda::error::CudaError;

pub(super) use sys::cudnnBackendAttributeName_t as Name;
pub(super) use sys::cudnnBackendAttributeType_t as Kind;
pub(super) use sys::cudnnBackendDescriptorType_t as Class;

/// A descriptor and what it points to, which must live as long.
pub(super) struct Descriptor {
    api: Rc<Api>,
    raw: Raw,
    class: Class,
    parts: Vec<Rc<Descriptor>>,
}

impl Descriptor {
    /// A new one without attributes.
    #[allow(unsafe_code)]
    pub fn new(api: &Rc<Api>, class: Class) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the descriptor is written before it is read, and destroyed once.
        api.check(unsafe { (api.create)(class as c_int, &mut raw) }, &format!("{class:?}"))?;
        Ok(Self { api: api.clone(), raw, class, parts: vec![] })
    }

    /// Sets an attribute to `values`, whose type must be the one that `kind` stands for.
    #[allow(unsafe_code)]
    fn set<T: Copy>(&mut self, name: Name, kind: Kind, values: &[T]) -> Result<(), CudaError> {
        // SAFETY: cuDNN copies as many elements as are there.
        let status = unsafe {
            (self.api.set)(self.raw, name as c_int, kind as c_int, values.len() as i64, values.as_ptr().cast())
        };
        self.api.check(status, &format!("{name:?}"))
    }

    /// Sets 64-bit numbers.
    pub fn numbers(mut self, name: Name, values: &[i64]) -> Result<Self, CudaError> {
        self.set(name, Kind::CUDNN_TYPE_INT64, values)?;
        Ok(self)
    }

    /// Sets an enum, by its number.
    pub fn choice(mut self, name: Name, kind: Kind, value: u32) -> Result<Self, CudaError> {
        self.set(name, kind, &[value])?;
        Ok(self)
    }

    /// Sets a truth value, which cuDNN reads as one byte.
    pub fn flag(mut self, name: Name, value: bool) -> Result<Self, CudaError> {
        self.set(name, Kind::CUDNN_TYPE_BOOLEAN, &[value])?;
        Ok(self)
    }

    /// Sets text.
    #[cfg(test)]
    pub fn text(mut self, name: Name, value: &str) -> Result<Self, CudaError> {
        self.set(name, Kind::CUDNN_TYPE_CHAR, value.as_bytes())?;
        Ok(self)
    }

    /// Sets addresses.
    pub fn pointers(mut self, name: Name, values: &[*mut c_void]) -> Result<Self, CudaError> {
        self.set(name, Kind::CUDNN_TYPE_VOID_PTR, values)?;
        Ok(self)
    }

    /// Sets a handle of the library.
    pub fn handle(mut self, name: Name, handle: *mut c_void) -> Result<Self, CudaError> {
        self.set(name, Kind::CUDNN_TYPE_HANDLE, &[handle])?;
        Ok(self)
    }

    /// Sets other descriptors, which are kept.
    pub fn descriptors(mut self, name: Name, values: &[&Rc<Descriptor>]) -> Result<Self, CudaError> {
        let raw: Vec<Raw> = values.iter().map(|value| value.raw).collect();
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)?;
        self.parts.extend(values.iter().map(|value| Rc::clone(value)));
        Ok(self)
    }

    /// Finishes it; `what` names it in an error.
    #[allow(unsafe_code)]
    pub fn finalize(self, what: &str) -> Result<Rc<Self>, CudaError> {
        // SAFETY: the descriptor is alive, and so is what it points to.
        let status = unsafe { (self.api.finalize)(self.raw) };
        self.api.check(status, &format!("{:?} of {what}", self.class))?;
        Ok(Rc::new(self))
    }

    /// An attribute that is one 64-bit number, none if it is not set.
    #[allow(unsafe_code)]
    pub fn number(&self, name: Name) -> Result<i64, CudaError> {
        let (mut value, mut count) = (0i64, 0i64);
        let kind = Kind::CUDNN_TYPE_INT64 as c_int;
        // SAFETY: one element is asked for and there is room for one.
        let status = unsafe {
            (self.api.get)(self.raw, name as c_int, kind, 1, &mut count, std::ptr::from_mut(&mut value).cast())
        };
        self.api.check(status, &format!("{name:?}"))?;
        Ok(value)
    }

    /// An attribute that is one enum, by its number.
    #[allow(unsafe_code)]
    pub fn chosen(&self, name: Name, kind: Kind) -> Result<u32, CudaError> {
        let (mut value, mut count) = (0u32, 0i64);
        let at = std::ptr::from_mut(&mut value).cast();
        // SAFETY: as in `number`.
        let status = unsafe { (self.api.get)(self.raw, name as c_int, kind as c_int, 1, &mut count, at) };
        self.api.check(status, &format!("{name:?}"))?;
        Ok(value)
    }

    /// An attribute that is a list of at most `most` descriptors of a class; fewer if there are fewer.
    #[allow(unsafe_code)]
    pub fn list(&self, name: Name, class: Class, most: usize) -> Result<Vec<Rc<Descriptor>>, CudaError> {
        let made: Result<Vec<Descriptor>, CudaError> = (0..most).map(|_| Self::new(&self.api, class)).collect();
        let mut made = made?;
        let mut raw: Vec<Raw> = made.iter().map(|descriptor| descriptor.raw).collect();
        let mut count = 0i64;
        let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR as c_int;
        // SAFETY: cuDNN fills in the descriptors, of which there are as many as it is told.
        let status =
            unsafe { (self.api.get)(self.raw, name as c_int, kind, most as i64, &mut count, raw.as_mut_ptr().cast()) };
        self.api.check(status, &format!("{name:?}"))?;
        made.truncate(count.max(0) as usize);
        Ok(made.into_iter().map(Rc::new).collect())
    }

    /// The library's functions.
    pub fn api(&self) -> &Rc<Api> {
        &self.api
    }

    /// As cuDNN holds it.
    pub fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Descriptor {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once.
        unsafe { (self.api.destroy)(self.raw) };
    }
}
