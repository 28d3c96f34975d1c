import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { Sandbox } from 'microsandbox'
import { runMsb } from '../support/msb.ts'
import { residentMib } from '../support/process-memory.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// Files of a sandbox, as the unmodified public SDK and `msb cp` read and write them.

const MIB = 1024 * 1024
/**
 * The maximum growth of the server's memory while a far larger file passes through. It includes uncollected garbage.
 */
const GROWTH_LIMIT_MIB = 300

describe('the files of a sandbox', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let box: Sandbox
  let host: string

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
    box = await sdk.Sandbox.builder('files').image(DEMO_IMAGE).create()
    host = mkdtempSync(join(tmpdir(), 'sandyard-files-'))
  })
  after(async () => {
    rmSync(host, { recursive: true, force: true })
    await server.close()
  })
  const shell = async (script: string, sandbox = box): Promise<string> => {
    const output = await sandbox.shell(script)
    assert.equal(output.code, 0, output.stderr())
    return output.stdout().trim()
  }

  test('every file operation of the SDK takes effect in the sandbox', async () => {
    const fs = box.fs()
    await fs.mkdir('/work/a/b')
    await fs.write('/work/a/ünï.txt', 'one\n')
    assert.equal(await shell('cat /work/a/ünï.txt'), 'one')
    assert.equal(await shell('stat -c "%u:%g %a" /work/a/ünï.txt'), '0:0 644')
    await shell('printf two > /work/a/two; chmod 600 /work/a/two; ln -s two /work/a/link')
    assert.equal(await fs.readToString('/work/a/link'), 'two')
    const listed = await fs.list('/work/a')
    assert.deepEqual(listed.map(({ path }) => path).toSorted(), ['/work/a/b', '/work/a/link', '/work/a/two', '/work/a/ünï.txt']) // prettier-ignore
    const meta = await fs.stat('/work/a/two')
    assert.deepEqual([meta.kind, meta.size, meta.mode & 0o777], ['file', 3, 0o600])
    await fs.copy('/work/a/two', '/work/a/three')
    assert.equal(await shell('stat -c %a /work/a/three; cat /work/a/three'), '600\ntwo')
    await fs.rename('/work/a/three', '/work/four')
    assert.deepEqual([await fs.exists('/work/a/three'), await fs.exists('/work/four')], [false, true])
    await fs.remove('/work/four')
    await fs.removeDir('/work/a')
    assert.equal(await shell('ls /work'), '')
    await fs.write('/work/empty', '')
    assert.equal((await fs.read('/work/empty')).length, 0)
  })

  test('a file operation that fails is refused with the error message of the operating system', async () => {
    const fs = box.fs()
    await assert.rejects(fs.read('/none'), /No such file or directory/)
    await assert.rejects(fs.list('/etc/passwd'), /Not a directory/)
    await assert.rejects(fs.remove('/etc'), /directory|not permitted/i)
    await assert.rejects(fs.write('/proc/sys/kernel/core_pattern', 'x'), /Permission denied|Read-only file system/)
    await shell('mkdir -p /full/in')
    await assert.rejects(fs.rename('/none', '/gone'), /No such file or directory/)
    await shell('mkdir /empty')
    await assert.rejects(fs.rename('/empty', '/full'), /Directory not empty/)
  })

  test('no path and no link leads out of the sandbox', async () => {
    const fs = box.fs()
    const secret = join(host, 'secret')
    writeFileSync(secret, 'of the host')
    await shell(`ln -s ${secret} /escape; ln -s /proc/1/root/../..${secret} /escape2; ln -s / /slash`)
    for (const path of [
      secret,
      '/escape',
      '/escape2',
      `/../../..${secret}`,
      `/proc/1/root${secret}`,
      `/slash${secret}`,
    ])
      await assert.rejects(fs.read(path), /No such file or directory|Permission denied/, path)
    await fs.mkdir('/slash/made-inside')
    assert.equal(await shell('ls -d /made-inside'), '/made-inside')
    assert.equal(lstatSync('/made-inside', { throwIfNoEntry: false }), undefined)
  })

  test('file operations reach mounts, and cannot write to read-only ones', async () => {
    await sdk.Volume.builder('shared').create()
    const mounted = await sdk.Sandbox.builder('mounted')
      .image(DEMO_IMAGE)
      .volume('/data', (mount) => mount.named('shared'))
      .volume('/kept', (mount) => mount.named('shared').readonly())
      .volume('/quick', (mount) => mount.tmpfs().size(16))
      .create()
    await mounted.fs().write('/data/file', 'in the volume')
    assert.equal(await mounted.fs().readToString('/kept/file'), 'in the volume')
    await assert.rejects(mounted.fs().write('/kept/other', 'x'), /Read-only file system/)
    await mounted.fs().write('/quick/file', 'in memory')
    assert.equal(await shell('cat /quick/file', mounted), 'in memory')
    await assert.rejects(mounted.fs().write('/quick/large', Buffer.alloc(17 * MIB)), /No space left on device/)
    await mounted.stop()
  })

  test('50 MiB are written and read back unchanged in one call, as streams, and by copies from and to this machine', async () => {
    const bytes = randomBytes(50 * MIB)
    const digest = createHash('sha256').update(bytes).digest('hex')
    await box.fs().write('/root/large', bytes)
    assert.equal((await shell('sha256sum /root/large')).split(' ')[0], digest)
    const sink = await box.fs().writeStream('/root/streamed')
    for (let at = 0; at < bytes.length; at += MIB) await sink.write(bytes.subarray(at, at + MIB))
    await sink.close()
    const hash = createHash('sha256')
    for await (const piece of await box.fs().readStream('/root/streamed')) hash.update(piece)
    assert.equal(hash.digest('hex'), digest)
    await box.fs().copyToHost('/root/large', join(host, 'large'))
    assert.ok(readFileSync(join(host, 'large')).equals(bytes))
    await box.fs().copyFromHost(join(host, 'large'), '/root/again')
    assert.equal(await shell('cmp /root/large /root/again && echo same'), 'same')
  })

  test('a file of 1 GiB passes through a server whose memory doesn’t grow', async () => {
    await shell('truncate -s 1G /root/huge')
    const before = residentMib(server.pid())
    let received = 0
    let highest = before
    for await (const piece of await box.fs().readStream('/root/huge')) {
      received += piece.length
      if (received % (64 * MIB) < piece.length) highest = Math.max(highest, residentMib(server.pid()))
    }
    assert.equal(received, 1024 * MIB)
    const sink = await box.fs().writeStream('/dev/null')
    const zeros = Buffer.alloc(2 * MIB)
    for (let sent = 0; sent < 1024; sent += 2) {
      await sink.write(zeros)
      if (sent % 64 === 0) highest = Math.max(highest, residentMib(server.pid()))
    }
    await sink.close()
    assert.ok(highest - before < GROWTH_LIMIT_MIB, `from ${String(before)} to ${String(highest)} MiB`)
  })

  test('`msb cp` copies a folder in, out, within and between sandboxes, with modes and links', async () => {
    const other = await sdk.Sandbox.builder('other').image(DEMO_IMAGE).create()
    const tree = join(host, 'tree')
    mkdirSync(join(tree, 'sub/deep'), { recursive: true })
    writeFileSync(join(tree, 'run.sh'), '#!/bin/sh\necho ran\n', { mode: 0o755 })
    writeFileSync(join(tree, 'sub/deep/data'), randomBytes(3 * MIB))
    symlinkSync('sub/deep/data', join(tree, 'link'))
    const cp = async (from: string, to: string): Promise<void> => {
      const { code, stderr } = await runMsb(server, ['cp', from, to])
      assert.equal(code, 0, `${from} to ${to}: ${stderr}`)
    }
    await cp(tree, 'files:/tree')
    assert.equal(await shell('/tree/run.sh; readlink /tree/link; stat -c %a /tree/run.sh'), 'ran\nsub/deep/data\n755')
    await cp('files:/tree', 'other:/copied')
    assert.equal(await shell('/copied/run.sh; readlink /copied/link', other), 'ran\nsub/deep/data')
    await cp('other:/copied/sub/deep/data', 'other:/root/data')
    await cp('other:/copied', join(host, 'back'))
    assert.equal(readlinkSync(join(host, 'back/link')), 'sub/deep/data')
    assert.ok(readFileSync(join(host, 'back/sub/deep/data')).equals(readFileSync(join(tree, 'sub/deep/data'))))
    assert.equal(lstatSync(join(host, 'back/run.sh')).mode & 0o777, 0o755)
    const missing = await runMsb(server, ['cp', 'files:/none', host])
    assert.equal(missing.code, 1)
    assert.match(missing.stderr, /none/)
    await other.stop()
  })
})
