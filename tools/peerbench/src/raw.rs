//! The machine's own limits: disk flush and loopback round trip.

use crate::stats::{Lat, Meter, Obj, Servers};
use anyhow::Result;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Append `block` bytes and fdatasync, again and again. With `prealloc` the
/// file is written with zeros first, so that a flush need not touch metadata.
pub fn disk(path: &Path, block: usize, secs: f64, prealloc: bool) -> Result<Obj> {
    let mut f = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    let cap = 64 << 20;
    if prealloc {
        let zeros = vec![0u8; 1 << 20];
        for _ in 0..cap / zeros.len() {
            f.write_all(&zeros)?;
        }
        f.sync_all()?;
        f.seek(SeekFrom::Start(0))?;
    }
    let buf = vec![7u8; block];
    let mut lat = Lat::default();
    let meter = Meter::start(&Servers(None));
    let mut pos = 0usize;
    let t0 = Instant::now();
    while t0.elapsed().as_secs_f64() < secs {
        if prealloc && pos + block > cap {
            f.seek(SeekFrom::Start(0))?;
            pos = 0;
        }
        let t = Instant::now();
        f.write_all(&buf)?;
        rustix::fs::fdatasync(&f)?;
        lat.add(t.elapsed());
        pos += block;
    }
    let mut o = Obj::new();
    o.insert("ops_s".into(), json!((lat.count() as f64 / t0.elapsed().as_secs_f64()).round()));
    lat.put("fdatasync", &mut o);
    meter.put(&mut o);
    drop(f);
    std::fs::remove_file(path)?;
    Ok(o)
}

/// Blocking echo of 64 bytes over 127.0.0.1 with TCP_NODELAY.
pub fn tcp(secs: f64) -> Result<Obj> {
    let l = TcpListener::bind("127.0.0.1:0")?;
    let addr = l.local_addr()?;
    let h = std::thread::spawn(move || -> Result<()> {
        let (mut s, _) = l.accept()?;
        s.set_nodelay(true)?;
        let mut b = [0u8; 64];
        while s.read_exact(&mut b).is_ok() {
            s.write_all(&b)?;
        }
        Ok(())
    });
    let mut s = TcpStream::connect_timeout(&addr, Duration::from_secs(5))?;
    s.set_nodelay(true)?;
    s.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut b = [1u8; 64];
    let mut lat = Lat::default();
    let meter = Meter::start(&Servers(None));
    let t0 = Instant::now();
    while t0.elapsed().as_secs_f64() < secs {
        let t = Instant::now();
        s.write_all(&b)?;
        s.read_exact(&mut b)?;
        lat.add(t.elapsed());
    }
    drop(s);
    let _ = h.join();
    let mut o = Obj::new();
    o.insert("ops_s".into(), json!((lat.count() as f64 / t0.elapsed().as_secs_f64()).round()));
    lat.put("rtt", &mut o);
    meter.put(&mut o);
    Ok(o)
}
