//! The format in which `zdb -l` and `zdb -C` print a list.

use std::fmt;

use crate::value::Value;
use crate::{NvList, NvStr};

/// A list to be printed with every line indented.
#[derive(Clone, Copy, Debug)]
pub struct Indented<'a> {
    pub(crate) list: &'a NvList,
    pub(crate) indent: usize,
}

/// Spaces for one level of nesting.
const STEP: usize = 4;

impl fmt::Display for Indented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.list.iter() {
            IndentedLine { f, indent: self.indent, name }.value(value)?;
        }
        Ok(())
    }
}

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.indented(0).fmt(f)
    }
}

struct IndentedLine<'f, 'b, 'n> {
    f: &'f mut fmt::Formatter<'b>,
    indent: usize,
    name: &'n NvStr,
}

impl IndentedLine<'_, '_, '_> {
    fn scalar(&mut self, value: impl fmt::Display) -> fmt::Result {
        writeln!(self.f, "{:w$}{}: {value}", "", self.name, w = self.indent)
    }

    fn items<T: fmt::Display>(&mut self, items: impl IntoIterator<Item = T>) -> fmt::Result {
        for (i, item) in items.into_iter().enumerate() {
            writeln!(self.f, "{:w$}{}[{i}]: {item}", "", self.name, w = self.indent)?;
        }
        Ok(())
    }

    fn nested(&mut self, list: &NvList) -> fmt::Result {
        fmt::Display::fmt(&list.indented(self.indent + STEP), self.f)
    }

    fn value(&mut self, value: &Value) -> fmt::Result {
        match value {
            Value::Boolean => writeln!(self.f, "{:w$}{}", "", self.name, w = self.indent),
            Value::BooleanValue(v) => self.scalar(v),
            Value::Byte(v) | Value::Uint8(v) => self.scalar(v),
            Value::Int8(v) => self.scalar(v),
            Value::Int16(v) => self.scalar(v),
            Value::Uint16(v) => self.scalar(v),
            Value::Int32(v) => self.scalar(v),
            Value::Uint32(v) => self.scalar(v),
            Value::Int64(v) | Value::Hrtime(v) => self.scalar(v),
            Value::Uint64(v) => self.scalar(v),
            Value::Double(v) => self.scalar(v),
            Value::String(v) => self.scalar(format_args!("'{v}'")),
            Value::ByteArray(v) | Value::Uint8Array(v) => self.items(v),
            Value::Int8Array(v) => self.items(v),
            Value::Int16Array(v) => self.items(v),
            Value::Uint16Array(v) => self.items(v),
            Value::Int32Array(v) => self.items(v),
            Value::Uint32Array(v) => self.items(v),
            Value::Int64Array(v) => self.items(v),
            Value::Uint64Array(v) => self.items(v),
            Value::BooleanArray(v) => self.items(v),
            Value::StringArray(v) => self.items(v.iter().map(|s| format!("'{s}'"))),
            Value::List(v) => {
                writeln!(self.f, "{:w$}{}:", "", self.name, w = self.indent)?;
                self.nested(v)
            }
            Value::ListArray(v) => v.iter().enumerate().try_for_each(|(i, list)| {
                writeln!(self.f, "{:w$}{}[{i}]:", "", self.name, w = self.indent)?;
                self.nested(list)
            }),
        }
    }
}
