//! Writes the packed form.

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{Error, Words, tag};

/// Numbers, lengths and words that fit into the byte that says what they are.
const SMALL_NUMBERS: u64 = (tag::SHORT_TEXT - tag::SMALL_NUMBER) as u64;
const SHORT_TEXTS: usize = (tag::LOW_WORD - tag::SHORT_TEXT) as usize;
const LOW_WORDS: u64 = 0x100 - tag::LOW_WORD as u64;

pub(super) struct Writer<'w> {
    pub(super) words: &'w mut Words,
    pub(super) bytes: Vec<u8>,
}

impl Writer<'_> {
    /// Seven bits in each byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.bytes.push(number.to_le_bytes()[0]);
    }

    fn number(&mut self, number: u64) {
        if number < SMALL_NUMBERS {
            self.bytes.push(tag::SMALL_NUMBER + number.to_le_bytes()[0]);
        } else {
            self.bytes.push(tag::NUMBER);
            self.varint(number);
        }
    }

    fn word(&mut self, word: &'static str) {
        let number = self.words.number(word);
        if number < LOW_WORDS {
            self.bytes.push(tag::LOW_WORD + number.to_le_bytes()[0]);
        } else {
            self.bytes.push(tag::WORD);
            self.varint(number);
        }
    }

    fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length) if text.len() < SHORT_TEXTS => self.bytes.push(tag::SHORT_TEXT + length),
            _ => {
                self.bytes.push(tag::TEXT);
                self.varint(text.len() as u64);
            }
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn open(&mut self, tag: u8) -> &mut Self {
        self.bytes.push(tag);
        self
    }

    /// A variant that holds something is a map with one entry.
    fn variant(&mut self, variant: &'static str, tag: u8) -> &mut Self {
        self.bytes.push(tag::MAP);
        self.word(variant);
        self.open(tag)
    }

    fn close(&mut self) {
        self.bytes.push(tag::END);
    }
}

impl Serializer for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.bytes.push(if value { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        if let Ok(number) = u64::try_from(value) {
            self.number(number);
        } else {
            self.bytes.push(tag::BELOW_ZERO);
            self.varint((!value).cast_unsigned());
        }
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        self.number(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        self.bytes.push(tag::FLOAT);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.text(value.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        self.text(value);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Error> {
        Err(Error::custom("bytes have no form of their own"))
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.bytes.push(tag::NULL);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.word(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.bytes.push(tag::MAP);
        self.word(variant);
        value.serialize(&mut *self)?;
        self.close();
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self.open(tag::LIST))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Error> {
        Ok(self.open(tag::LIST))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self.open(tag::LIST))
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, variant: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self.variant(variant, tag::LIST))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self.open(tag::MAP))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self.open(tag::MAP))
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, variant: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self.variant(variant, tag::MAP))
    }
}

impl SerializeSeq for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTuple for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTupleStruct for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTupleVariant for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        self.close();
        Ok(())
    }
}

impl SerializeMap for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeStruct for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.word(key);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeStructVariant for &mut Writer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.word(key);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        self.close();
        Ok(())
    }
}
