use super::*;
use proptest::prelude::*;

/// The algorithms that produce streams, every gzip level and zstd code included.
fn algorithms() -> Vec<Compression> {
    let mut all = vec![Compression::Lzjb, Compression::Zle, Compression::Lz4];
    all.extend((1..=9).map(Compression::Gzip));
    all.extend(ZstdLevel::all().map(Compression::Zstd));
    all
}

/// One of each kind of decoder.
fn decoders() -> Vec<Compression> {
    let zstd = Compression::Zstd(ZstdLevel::DEFAULT);
    vec![Compression::Lzjb, Compression::Zle, Compression::Lz4, Compression::Gzip(6), zstd]
}

struct BlockRng(u64);

impl BlockRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// Bytes with runs, repeats, zeros and noise.
    fn block(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let run = 1 + self.below(90);
            match self.below(4) {
                0 => out.extend(std::iter::repeat_n(0, run)),
                1 => out.extend((0..run).map(|_| self.next() as u8)),
                2 => out.extend(std::iter::repeat_n(self.next() as u8, run)),
                _ if out.is_empty() => out.push(1),
                _ => {
                    let from = self.below(out.len());
                    let end = (from + run).min(out.len());
                    out.extend_from_within(from..end);
                }
            }
        }
        out.truncate(len);
        out
    }
}

fn unpack(alg: Compression, src: &[u8], len: usize) -> Option<Vec<u8>> {
    // Canaries before and after, to notice a decoder that leaves its slice.
    let mut buf = vec![0xa5; len + 128];
    let ok = decompress(alg.id(), src, &mut buf[64..64 + len]).is_ok();
    assert!(buf[..64].iter().chain(&buf[64 + len..]).all(|&b| b == 0xa5), "{alg:?} wrote outside");
    ok.then(|| buf[64..64 + len].to_vec())
}

/// Chapter 02 §7.1 and §7.2.
#[test]
fn examples() {
    let lzjb = [0x08, 0x61, 0x62, 0x63, 0x18, 0x03];
    assert_eq!(unpack(Compression::Lzjb, &lzjb, 12).unwrap(), b"abcabcabcabc");
    // A match may be cut by the end.
    assert_eq!(unpack(Compression::Lzjb, &lzjb, 10).unwrap(), b"abcabcabca");
    let mut plain = b"AB\0\0\0C\0D".to_vec();
    plain.resize(512, 0);
    let zle = [0x01, 0x41, 0x42, 0x42, 0x02, 0x43, 0x00, 0x44, 0xff, 0xff, 0xb7];
    assert_eq!(unpack(Compression::Zle, &zle, 512).unwrap(), plain);
    let mut out = [0; 512];
    assert_eq!(compress(Compression::Zle, &plain, &mut out), Some(zle.len()));
    assert_eq!(out[..zle.len()], zle);
}

/// Blocks that OpenZFS's kernel module wrote: id, logical size, stored bytes
/// without their zero tail, SHA-256 of the plain bytes as `zdb -R` gives them.
const GOLDEN: [(u8, usize, &str, &str); 4] = [
    (
        3,
        1024,
        "005468652071756963006b2062726f776e2000666f7820323032360031313236206a756d007073206f76\
      657220027400286c617a792064f06f672e20fc36fc6cfca2fcd8f7fd0efd7af1b000fc01fc42fc42fc42\
      07fc42fc42fc42",
        "303d77c11f723ee0e41a763cb309be6b1e6f3dc41ab8f5eac6233f474b535c9a",
    ),
    (
        10,
        131072,
        "789cedc1210100000002201ffbbf19bc0134000000000000000000000000000000000000000000000000\
      000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
      000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
      00000000000000000000000000000000000000370d200070",
        "6533732a228802a116bf0bc4eb0a56733ee25ba73145523532d9fa33645e38c2",
    ),
    (
        15,
        1024,
        "00000071ff31565a115814b6081a5193636d26c8aa564a5a4ec9bfcb3b1e90dff65060298fc7696c08b8\
      ac50b70ef14fdc2539f0453e0d06d308776120e6b06fb9b46278b3914000ffffefff107464721a941eb1\
      98f9ef2751393390250141e808e210eab42861a70c1d0b0001008950",
        "385e4f7ae99602f4bb6d637726caa4e5b736e7e2d9c9a16ee8491d2b85936a4d",
    ),
    (
        16,
        2560,
        "00000085130028a50010050400340709afea3f3967d77faf8606ba8284010a2daa3a717b4ec78f7273a8\
      f63e02d4aef0afa2fc8be2fb292ed102a19923373fedee570d9579f3c6f420f772ef3077d43adaba424c\
      e081ba70b548a9f1b6d6fa6bc1ed8458281b30f88ae78e074f1932d6ff3814cdd6b1ef5b2b6062d08337\
      1de3b9000200a3e454007a30f8f80c",
        "caa2e64b5df84c8983bc55b28e68c6ba35def5ad9f47bc599b79f46d4350538b",
    ),
];

#[test]
fn blocks_written_by_openzfs() {
    use sha2::Digest;
    for (id, len, stored, want) in GOLDEN {
        let digits = |i: usize| u8::from_str_radix(&stored[2 * i..2 * i + 2], 16).unwrap();
        let mut block: Vec<u8> = (0..stored.len() / 2).map(digits).collect();
        block.resize(block.len().next_multiple_of(512), 0);
        let plain = unpack(Compression::from_id(id).unwrap(), &block, len).unwrap();
        let sum: String = sha2::Sha256::digest(&plain).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(sum, want, "{id}");
    }
}

#[test]
fn zlib_header_and_lz4_header() {
    let src = BlockRng(5).block(4096);
    let mut dst = vec![0; 8192];
    let n = compress(Compression::Gzip(6), &src, &mut dst).unwrap();
    assert_eq!(dst[0], 0x78);
    assert_eq!(u16::from_be_bytes([dst[0], dst[1]]) % 31, 0);
    assert!(n < 4096);
    let n = compress(Compression::Lz4, &src, &mut dst).unwrap();
    assert_eq!(u32::from_be_bytes(*dst.first_chunk().unwrap()) as usize, n - 4);
    let n = compress(Compression::Zstd(ZstdLevel::DEFAULT), &src, &mut dst).unwrap();
    assert_eq!(u32::from_be_bytes(*dst.first_chunk().unwrap()) as usize, n - 8);
    assert_eq!(dst[4], 3);
    // Frame header descriptor: no content size, no single segment, no checksum,
    // no dictionary.
    assert_eq!(dst[8] & 0b1110_0111, 0);
}

#[test]
fn every_algorithm_round_trips_with_tail() {
    let mut rng = BlockRng(0x1234_5678_9abc_def1);
    for alg in algorithms() {
        for len in [512, 1536, 4096, 131_072] {
            let src = rng.block(len);
            let mut dst = vec![0; 2 * len + 1024];
            let n = compress(alg, &src, &mut dst).unwrap_or_else(|| panic!("{alg:?} {len}"));
            for tail in [0, 1, 511] {
                assert_eq!(
                    unpack(alg, &dst[..n + tail], len).as_ref(),
                    Some(&src),
                    "{alg:?} {len}"
                );
            }
            // A result that does not fit is refused, and nothing behind is touched.
            let mut small = vec![0xa5; n - 1 + 64];
            let refused = compress(alg, &src, &mut small[..n - 1]);
            if let Some(m) = refused {
                assert!(m < n, "{alg:?}");
            }
            assert!(small[n - 1..].iter().all(|&b| b == 0xa5), "{alg:?}");
            // Another length is an error: the stream must give exactly dst.
            assert_eq!(unpack(alg, &dst[..n], len + 512), None, "{alg:?}");
        }
    }
}

/// Streams that end early or are too long are errors for every decoder.
#[test]
fn noise_and_mutations_stay_in_bounds() {
    let mut rng = BlockRng(77);
    let rounds = if cfg!(debug_assertions) { 3000 } else { 30_000 };
    for alg in decoders() {
        let mut accepted = 0;
        for round in 0..rounds {
            let len = 512 * (1 + rng.below(9));
            let mut stream;
            if round % 3 == 0 {
                let noise = 1 + rng.below(700);
                stream = (0..noise).map(|_| rng.next() as u8).collect::<Vec<u8>>();
                if let (Some(header), true) = (stream.first_chunk_mut::<4>(), round % 2 == 0) {
                    // A plausible length, so that the body is decoded.
                    *header = (noise.saturating_sub(8) as u32).to_be_bytes();
                }
            } else {
                let src = rng.block(len);
                stream = vec![0; 2 * len];
                let n = compress(alg, &src, &mut stream).unwrap();
                stream.truncate(n);
                for _ in 0..=rng.below(6) {
                    let at = rng.below(n);
                    stream[at] ^= 1 << rng.below(8);
                }
                if rng.below(4) == 0 {
                    stream.truncate(rng.below(n));
                }
            }
            accepted += usize::from(unpack(alg, &stream, len).is_some());
            let n = rng.below(len);
            let mut prefix = vec![0; len];
            let _ = decompress_prefix(alg.id(), &stream, &mut prefix, n);
        }
        assert!(accepted < rounds, "{alg:?} accepts everything");
    }
}

#[test]
fn prefix_equals_the_beginning() {
    let mut rng = BlockRng(99);
    for alg in decoders() {
        for _ in 0..40 {
            let src = rng.block(8192);
            let mut packed = vec![0; 16_384];
            let n = compress(alg, &src, &mut packed).unwrap();
            let want = rng.below(8193);
            let mut out = vec![0x5a; 8192];
            decompress_prefix(alg.id(), &packed[..n], &mut out, want).unwrap();
            assert_eq!(out[..want], src[..want], "{alg:?} {want}");
        }
    }
}

/// The first bytes of a block between canaries, or none.
fn head(alg: Compression, src: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut buf = vec![0xa5; len + 128];
    let ok = decompress_head(alg.id(), src, &mut buf[64..64 + len]).is_ok();
    assert!(buf[..64].iter().chain(&buf[64 + len..]).all(|&b| b == 0xa5), "{alg:?} wrote outside");
    ok.then(|| buf[64..64 + len].to_vec())
}

#[test]
fn algorithms_that_can_stop_early() {
    for alg in decoders().into_iter().chain([Compression::Off, Compression::Empty]) {
        let stops = !matches!(alg, Compression::Gzip(_) | Compression::Zstd(_));
        assert_eq!(has_head(alg.id()), stops, "{alg:?}");
        let mut packed = vec![0; 4096];
        let n = compress(alg, &[0; 1024], &mut packed).unwrap_or(1024);
        assert_eq!(head(alg, &packed[..n], 100), stops.then(|| vec![0; 100]), "{alg:?}");
    }
    assert!(!has_head(0) && !has_head(17));
    assert!(decompress_head(17, &[0; 64], &mut [0; 8]).is_err());
}

proptest! {
    /// If the full decoder accepts a stream, stopping early returns its first bytes. No
    /// stream, however damaged, makes it access memory outside its slice.
    #[test]
    fn a_head_is_the_beginning_of_the_whole(
        seed in 1u64.., len in 1usize..20_000, cut in 0.0f64..1.0,
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        short in 0usize..40,
    ) {
        let src = BlockRng(seed).block(len);
        let want = (len as f64 * cut) as usize;
        for alg in [Compression::Lzjb, Compression::Zle, Compression::Lz4] {
            let mut packed = vec![0; 2 * len + 64];
            let n = compress(alg, &src, &mut packed).unwrap();
            packed.truncate(n);
            prop_assert_eq!(head(alg, &packed, want), Some(src[..want].to_vec()));
            prop_assert_eq!(head(alg, &packed, len), Some(src.clone()));
            // Bytes beyond the end cannot be decoded.
            prop_assert_eq!(head(alg, &packed, len + 1), None);
            for (at, value) in &damage {
                let at = at.index(n);
                packed[at] ^= value;
            }
            packed.truncate(n - short.min(n));
            let early = head(alg, &packed, want);
            if let Some(whole) = unpack(alg, &packed, len) {
                prop_assert_eq!(early, Some(whole[..want].to_vec()));
            }
        }
    }
}

#[test]
fn off_and_empty() {
    let src = [3u8; 1024];
    assert_eq!(unpack(Compression::Off, &src, 1024).unwrap(), src);
    assert_eq!(unpack(Compression::Off, &src, 2048), None);
    assert_eq!(unpack(Compression::Empty, &[], 1024).unwrap(), [0; 1024]);
    assert_eq!(compress(Compression::Off, &src, &mut [0; 2048]), None);
    assert_eq!(compress(Compression::Empty, &src, &mut [0; 2048]), None);
    assert_eq!(compress(Compression::Empty, &[0; 1000], &mut []), Some(0));
    for id in [0, 1, 17, 127, 255] {
        let err = decompress(id, &src, &mut [0; 512]).unwrap_err();
        assert_eq!(err.kind(), base::ErrorKind::Unsupported);
    }
}

#[test]
fn names_and_properties() {
    let mut all = algorithms();
    all.extend([Compression::Off, Compression::Zstd(ZstdLevel::DEFAULT)]);
    for alg in all {
        assert_eq!(Compression::from_name(&alg.name()), Some(alg));
        assert_eq!(Compression::from_id(alg.id()).map(Compression::id), Some(alg.id()));
    }
    let parse = Compression::from_name;
    assert_eq!(parse("on"), Some(Compression::Lz4));
    assert_eq!(parse("gzip"), Some(Compression::Gzip(6)));
    assert_eq!(parse("gzip-6").unwrap().id(), 10);
    for (name, number) in [
        ("off", 2),
        ("lz4", 15),
        ("zstd", 16),
        ("zstd-3", 16 | 3 << 7),
        ("zstd-fast", 16 | 103 << 7),
        ("zstd-fast-10", 16 | 112 << 7),
        ("zstd-fast-1000", 16 | 123 << 7),
    ] {
        assert_eq!(Compression::from_property(number), parse(name), "{name}");
    }
    let bad = [
        "",
        "gzip-0",
        "gzip-10",
        "gzip-",
        "zstd-0",
        "zstd-20",
        "zstd-",
        "zstd-+3",
        "zstd-fast-11",
        "empty",
        "inherit",
    ];
    for name in bad {
        assert_eq!(parse(name), None, "{name}");
    }
    let property = Compression::from_property;
    assert_eq!(property(1), Some(Compression::Lz4));
    assert_eq!(property(16), Some(Compression::Zstd(ZstdLevel::DEFAULT)));
    assert_eq!(property(16 | 255 << 7), Some(Compression::Zstd(ZstdLevel::DEFAULT)));
    for value in [0, 4, 17, 15 | 1 << 7, 16 | 20 << 7, 16 | 256 << 7, u64::MAX] {
        assert_eq!(property(value), None, "{value}");
    }
}

proptest! {
    #[test]
    fn any_bytes_round_trip(src in proptest::collection::vec(any::<u8>(), 0..3000), which in 0usize..5) {
        let alg = decoders()[which];
        let mut dst = vec![0; 2 * src.len() + 200];
        let n = compress(alg, &src, &mut dst).unwrap();
        prop_assert_eq!(unpack(alg, &dst[..n], src.len()), Some(src));
    }

    #[test]
    fn zero_detection(len in 0usize..700, at in 0usize..700) {
        let mut data = vec![0u8; len];
        prop_assert!(is_zero(&data));
        if let Some(b) = data.get_mut(at) {
            *b = 4;
            prop_assert!(!is_zero(&data));
        }
    }
}
