package endian_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/archdisk/archdisk/endian"
	"github.com/stretchr/testify/require"
)

func TestDecoder(t *testing.T) {
	record := []byte{0x51, 0x46, 0x49, 0xfb, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0xbb, 0xcc, 9}
	t.Run("big", func(t *testing.T) {
		d := endian.Big(record, 0)
		require.Equal(t, uint32(0x514649fb), d.U32("magic"))
		require.EqualValues(t, 3, d.U32("version"))
		require.Equal(t, uint64(0x0102030405060708), d.U64("size"))
		require.EqualValues(t, 0xaabb, d.U16("half"))
		require.EqualValues(t, 0xcc, d.U8("byte"))
		require.EqualValues(t, 19, d.Offset())
		require.Equal(t, []byte{9}, d.Bytes(1, "tail"))
		require.Zero(t, d.Len())
		require.NoError(t, d.Err())
	})
	t.Run("little", func(t *testing.T) {
		d := endian.Little(record, 0)
		require.Equal(t, uint32(0xfb494651), d.U32("magic"))
		d.Skip(4, "version")
		require.Equal(t, uint64(0x0807060504030201), d.U64("size"))
		require.EqualValues(t, 0xbbaa, d.U16("half"))
		require.NoError(t, d.Err())
	})
}

func TestDecoderFirstErrorSticks(t *testing.T) {
	d := endian.Big(make([]byte, 6), 0x200)
	d.U32("first")
	require.Zero(t, d.U32("second"), "only two bytes are left")
	require.Zero(t, d.U16("third"), "a read after an error gives zero although two bytes are left")
	var short *endian.ShortError
	require.ErrorAs(t, d.Err(), &short)
	require.Equal(t, endian.ShortError{Field: "second", Offset: 0x204, Want: 4, Have: 2}, *short)
	require.ErrorIs(t, d.Err(), io.ErrUnexpectedEOF)
}

func TestDecoderNegativeLength(t *testing.T) {
	d := endian.Little([]byte{1, 2}, 0)
	require.Nil(t, d.Bytes(-1, "hostile"))
	require.Error(t, d.Err())
}

func TestEncoder(t *testing.T) {
	e := endian.NewBig([]byte{7})
	e.U32(0x514649fb)
	e.U16(0x0102)
	e.U8(3)
	e.U64(4)
	e.Zero(2)
	e.Zero(-1)
	e.Raw([]byte("x"))
	require.Equal(t, []byte{7, 0x51, 0x46, 0x49, 0xfb, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 'x'}, e.Bytes())

	l := endian.NewLittle(nil)
	l.U32(1)
	require.Equal(t, []byte{1, 0, 0, 0}, l.Bytes())
}

func TestChecked(t *testing.T) {
	ok := func(v int64, err error) int64 { require.NoError(t, err); return v }
	bad := func(_ int64, err error) { require.ErrorIs(t, err, endian.ErrRange) }

	require.EqualValues(t, 7, ok(endian.Add(3, 4)))
	require.Equal(t, int64(math.MaxInt64), ok(endian.Add(math.MaxInt64, 0)))
	bad(endian.Add(math.MaxInt64, 1))
	bad(endian.Add(-1, 1))
	require.EqualValues(t, 12, ok(endian.Mul(3, 4)))
	bad(endian.Mul(1<<32, 1<<31))
	bad(endian.Mul(1<<62, 4))
	bad(endian.Mul(-1, 1))
	require.EqualValues(t, 64, ok(endian.Table(0x1000, 8, 8, 0x1040)))
	bad(endian.Table(0x1000, 8, 8, 0x103f))
	bad(endian.Table(math.MaxInt64-8, 8, 8, math.MaxInt64))
	bad(endian.Table(0, math.MaxInt64, 8, math.MaxInt64))
	require.EqualValues(t, 5, ok(endian.Int64(5)))
	bad(endian.Int64(1 << 63))
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, int64(512))
	f.Fuzz(func(t *testing.T, p []byte, base int64) {
		d := endian.Big(p, base)
		n := 0
		for d.Err() == nil {
			v := d.U64("v")
			if d.Err() == nil {
				require.Equal(t, binary.BigEndian.Uint64(p[n:]), v)
				n += 8
			}
		}
		require.Less(t, d.Len(), 8)
		e := endian.NewBig(nil)
		for r := endian.Big(p, 0); r.Len() >= 8; {
			e.U64(r.U64("v"))
		}
		require.True(t, bytes.HasPrefix(p, e.Bytes()))
	})
}

func ExampleDecoder() {
	d := endian.Big([]byte{0, 0, 0, 3, 0xff}, 0x1000)
	fmt.Println(d.U32("version"))
	d.U32("flags")
	fmt.Println(d.Err())
	// Output:
	// 3
	// endian: record ends inside flags at 0x1004: 4 bytes wanted, 1 there
}
