import assert from 'node:assert/strict'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { randomBytes } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { connectFiles, fieldOf, namesOf, numberOf, type FsClient } from '../../support/fs-client.ts'
import { makeLocalGuest } from '../../support/local-guest.ts'
import { runCommand } from '../../../src/lib/run-command.ts'

const MIB = 1024 * 1024

/** Connects a client that can read and write this machine's files, and makes a temporary folder for it. */
function begin(t: TestContext): { readonly client: FsClient; readonly dir: string } {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-fs-'))
  const client = connectFiles(makeLocalGuest())
  t.after(async () => {
    await client.agent.hangUp()
    rmSync(dir, { recursive: true, force: true })
  })
  return { client, dir }
}

test('a stat has type, size, mode, owner and times, of a symlink or of its target', async (t) => {
  const { client, dir } = begin(t)
  writeFileSync(join(dir, 'file'), 'four', { mode: 0o640 })
  symlinkSync('file', join(dir, 'link'))
  const stat = lstatSync(join(dir, 'file'))
  const path = join(dir, 'link')
  const [mtime, atime] = [stat.mtimeMs, stat.atimeMs].map((ms) => Math.floor(ms / 1000))
  assert.deepEqual(await client.run('Stat', { path, follow_symlink: true }), {
    Stat: { path, kind: 'file', size: 4, mode: 0o100640, modified: mtime, uid: 0, gid: 0, atime, mtime },
  })
  const link = fieldOf(await client.run('Stat', { path, follow_symlink: false }), 'Stat')
  assert.equal(fieldOf(link, 'kind'), 'symlink')
  assert.equal(fieldOf(fieldOf(await client.run('Stat', { path: '/dev/null', follow_symlink: true }), 'Stat'), 'kind'), 'other') // prettier-ignore
})

test('a folder, a symlink and a file are created as the requested user, with that user’s rights', async (t) => {
  const { client, dir } = begin(t)
  chmodSync(dir, 0o777)
  const owner = (name: string): string => {
    const { uid, gid } = lstatSync(join(dir, name))
    return `${String(uid)}:${String(gid)}`
  }
  await client.run('Mkdir', { path: join(dir, 'folder'), mode: 0o750, user: '1234:4321' })
  await client.run('Symlink', { target: 'x', link_path: join(dir, 'link'), user: 'nobody' })
  const create = { write: true, create: true, mode: 0o600 }
  await client.run('OpenFile', { path: join(dir, 'file'), options: { ...create, user: '1234' } })
  await client.run('OpenFile', { path: join(dir, 'own'), options: { ...create, user: null } })
  assert.deepEqual(['folder', 'link', 'file', 'own'].map(owner), ['1234:4321', '65534:65534', '1234:0', '0:0'])
  const attempts = [
    ['OpenFile', { path: join(dir, 'own'), options: { read: true, user: '1234' } }, 'open: Permission denied (os error 13)'],
    ['Mkdir', { path: join(dir, 'folder/in'), mode: null, user: 'nobody' }, 'mkdir: Permission denied (os error 13)'],
    ['Mkdir', { path: join(dir, 'other'), mode: null, user: 'not-a-user' }, "user 'not-a-user' is not in the sandbox's /etc/passwd"],
    ['Mkdir', { path: join(dir, 'other'), mode: null, user: '0:not-a-group' }, "group 'not-a-group' is not in the sandbox's /etc/group"],
    ['Mkdir', { path: join(dir, 'other'), mode: null, user: '99999999999' }, "user '99999999999' has an invalid id"],
  ] as const // prettier-ignore
  for (const [operation, fields, error] of attempts)
    await assert.rejects(client.run(operation, fields), { message: error }, JSON.stringify(fields))
  assert.equal(fieldOf(fieldOf(await client.run('Stat', { path: dir, follow_symlink: true }), 'Stat'), 'uid'), 0)
  assert.equal(existsSync(join(dir, 'other')), false)
})

test('a failure is a response with the system’s error text, never core.error', async (t) => {
  const { client, dir } = begin(t)
  const path = join(dir, 'none')
  const inFile = join(dir, 'file/in')
  writeFileSync(join(dir, 'file'), '')
  mkdirSync(join(dir, 'full/in'), { recursive: true })
  const missing = 'No such file or directory (os error 2)'
  const wanted: readonly (readonly [string, object, string])[] = [
    ['Stat', { path, follow_symlink: true }, `stat: ${missing}`],
    ['Stat', { path: '', follow_symlink: true }, `stat: ${missing}`],
    ['SetStat', { path, follow_symlink: true, attrs: { mode: 0o600 } }, `setstat: ${missing}`],
    ['SetStat', { path, follow_symlink: true, attrs: { size: 1 } }, `setstat: ${missing}`],
    ['List', { path }, `opendir: ${missing}`],
    ['ReadLink', { path: dir }, 'readlink: Invalid argument (os error 22)'],
    ['Symlink', { target: 'x', link_path: dir }, 'symlink: File exists (os error 17)'],
    ['Mkdir', { path: inFile, mode: null }, 'mkdir: Not a directory (os error 20)'],
    ['Mkdir', { path: join(dir, 'file'), mode: null }, 'mkdir: File exists (os error 17)'],
    ['Remove', { path }, `remove: ${missing}`],
    ['Remove', { path: dir }, 'remove: Is a directory (os error 21)'],
    ['RemoveDir', { path: join(dir, 'full'), recursive: false }, 'remove_dir: Directory not empty (os error 39)'],
    ['RemoveDir', { path: join(dir, 'file'), recursive: true }, 'remove_dir: Not a directory (os error 20)'],
    ['RemoveDir', { path, recursive: true }, `remove_dir: ${missing}`],
    ['Copy', { src: path, dst: inFile }, `copy: ${missing}`],
    ['Copy', { src: dir, dst: path }, 'copy: the source is not a regular file'],
    ['Copy', { src: join(dir, 'file'), dst: join(dir, 'file') }, 'copy: source and target are the same file'],
    ['Rename', { src: path, dst: dir }, `rename: ${missing}`],
    ['RealPath', { path: join(path, 'none') }, `realpath: ${missing}`],
    ['OpenFile', { path, options: { read: true } }, `open: ${missing}`],
    ['OpenFile', { path, options: {} }, 'open: Invalid argument (os error 22)'],
    ['OpenFile', { path, options: { read: true, create: true } }, 'open: Invalid argument (os error 22)'],
    ['OpenFile', { path, options: { append: true, truncate: true } }, 'open: Invalid argument (os error 22)'],
    ['OpenFile', { path: dir, options: { write: true, create_new: true } }, 'open: File exists (os error 17)'],
    ['OpenDir', { path: join(dir, 'file') }, 'opendir: Not a directory (os error 20)'],
    ['CloseHandle', { handle: 1 }, 'close: invalid handle: 1'],
    ['Read', { handle: 7, offset: 0, len: null }, 'read: invalid handle: 7'],
    ['Write', { handle: 7, offset: 0, len: null }, 'write: invalid handle: 7'],
    ['ReadDir', { handle: 7, limit: null }, 'readdir: invalid handle: 7'],
    ['FStat', { handle: 7 }, 'fstat: invalid handle: 7'],
    ['FSetStat', { handle: 7, attrs: {} }, 'fsetstat: invalid handle: 7'],
    ['Stat', { path: 'a\0b', follow_symlink: true }, 'stat: a path with a NUL byte: Invalid argument (os error 22)'],
    ['Stat', { path: `/${'x'.repeat(5000)}` }, 'stat: File name too long (os error 36)'],
    ['Stat', { path: 7 }, "the request can't be read: a text was expected"],
    ['Frobnicate', {}, "the request can't be read: the operation is unknown"],
  ]
  for (const [op, fields, words] of wanted) assert.equal(await client.refusal(op, fields), words, op)
  client.agent.send(900, 'core.fs.request', { op: 'Stat' })
  assert.equal((await client.answer(900)).ok, false)
  client.send(901, Buffer.from('nobody writes'))
  await client.run('Stat', { path: dir, follow_symlink: true })
  assert.ok(client.agent.received.every(({ type }) => type !== 'core.error'))
  assert.ok(client.agent.received.every(({ type, flags }) => type !== 'core.fs.response' || flags === 1))
})

test('folders are created with their parents, and an existing one gets the mode', async (t) => {
  const { client, dir } = begin(t)
  await client.run('Mkdir', { path: join(dir, 'a/b/c//'), mode: 0o700 })
  assert.deepEqual(
    [statSync(join(dir, 'a/b/c')).mode & 0o7777, statSync(join(dir, 'a/b')).mode & 0o7777],
    [0o700, 0o755],
  )
  await client.run('Mkdir', { path: join(dir, 'a/b/c'), mode: 0o1777 })
  assert.equal(statSync(join(dir, 'a/b/c')).mode & 0o7777, 0o1777)
  await client.run('Mkdir', { path: join(dir, 'a/b/c') })
  assert.equal(statSync(join(dir, 'a/b/c')).mode & 0o7777, 0o1777)
})

test('attributes are set one by one, and others stay', async (t) => {
  const { client, dir } = begin(t)
  const path = join(dir, 'file')
  writeFileSync(path, 'content')
  const set = (attrs: object, follow = true, at = path): Promise<unknown> =>
    client.run('SetStat', { path: at, follow_symlink: follow, attrs })
  await set({ mtime: 1000, atime: -2000 })
  await set({ mtime: 3000 })
  await set({ mode: 0o604, uid: 3 })
  await set({ gid: 4, size: 3 })
  await set({})
  const { mode, uid, gid, size, atimeMs } = statSync(path)
  assert.deepEqual([mode & 0o7777, uid, gid, size, atimeMs], [0o604, 3, 4, 3, -2_000_000])
  symlinkSync('file', join(dir, 'link'))
  await set({ uid: 9, mtime: 5 }, false, join(dir, 'link'))
  const link = lstatSync(join(dir, 'link'))
  assert.deepEqual([link.uid, link.mtimeMs, statSync(path).uid], [9, 5000, 3])
  const ofLink = { path: join(dir, 'link'), follow_symlink: false }
  assert.match(await client.refusal('SetStat', { ...ofLink, attrs: { mode: 0o777 } }), /not supported \(os error 95\)/)
  assert.match(await client.refusal('SetStat', { ...ofLink, attrs: { size: 0 } }), /symbolic links \(os error 40\)/)
  const handle = await client.open(path, { read: true, write: true })
  await client.run('FSetStat', { handle, attrs: { size: 100, mode: 0o4711, mtime: 77, uid: 0 } })
  const stat = fieldOf(await client.run('FStat', { handle }), 'Stat')
  assert.deepEqual([fieldOf(stat, 'size'), fieldOf(stat, 'mtime'), fieldOf(stat, 'uid'), fieldOf(stat, 'path')], [100, 77, 0, path]) // prettier-ignore
})

test('a path is resolved, even if its last part is missing', async (t) => {
  const { client, dir } = begin(t)
  mkdirSync(join(dir, 'folder'))
  symlinkSync('folder', join(dir, 'link'))
  symlinkSync('loop', join(dir, 'loop'))
  for (const [path, real] of [
    ['link/..//folder/.', 'folder'],
    ['link/new', 'folder/new'],
    ['link/new/', 'folder/new'],
  ] as const)
    assert.deepEqual(await client.run('RealPath', { path: `${dir}/${path}` }), { Path: join(dir, real) })
  assert.deepEqual(await client.run('RealPath', { path: '/none' }), { Path: '/none' })
  assert.match(await client.refusal('RealPath', { path: join(dir, 'loop') }), /os error 40/)
})

test('links, copies, renames and removals do what their names say', async (t) => {
  const { client, dir } = begin(t)
  await client.run('Symlink', { target: '../no where', link_path: join(dir, 'link') })
  assert.equal(readlinkSync(join(dir, 'link')), '../no where')
  assert.deepEqual(await client.run('ReadLink', { path: join(dir, 'link') }), { Path: '../no where' })
  const content = randomBytes(9 * MIB + 1)
  writeFileSync(join(dir, 'from'), content)
  chmodSync(join(dir, 'from'), 0o751)
  writeFileSync(join(dir, 'to'), Buffer.alloc(12 * MIB))
  await client.run('Copy', { src: join(dir, 'from'), dst: join(dir, 'to') })
  assert.ok(readFileSync(join(dir, 'to')).equals(content))
  assert.equal(statSync(join(dir, 'to')).mode & 0o7777, 0o751)
  await client.run('Rename', { src: join(dir, 'to'), dst: join(dir, 'from') })
  assert.equal(existsSync(join(dir, 'to')), false)
  await client.run('Remove', { path: join(dir, 'from') })
  await client.run('Remove', { path: join(dir, 'link') })
  await client.run('Mkdir', { path: join(dir, 'empty'), mode: null })
  await client.run('RemoveDir', { path: join(dir, 'empty'), recursive: false })
  assert.deepEqual(await client.run('List', { path: dir }), { List: [] })
})

test('a tree is removed completely, without following the symlinks in it', async (t) => {
  const { client, dir } = begin(t)
  mkdirSync(join(dir, 'kept'))
  writeFileSync(join(dir, 'kept/file'), '')
  mkdirSync(join(dir, 'tree', ...Array.from({ length: 200 }, () => 'deep')), { recursive: true })
  for (let n = 0; n < 700; n++) writeFileSync(join(dir, 'tree/deep', `file ${String(n)}`), '')
  symlinkSync('../kept', join(dir, 'tree/link'))
  symlinkSync('tree', join(dir, 'to tree'))
  await client.run('RemoveDir', { path: join(dir, 'to tree'), recursive: true })
  assert.ok(existsSync(join(dir, 'tree')))
  await client.run('RemoveDir', { path: join(dir, 'tree'), recursive: true })
  assert.deepEqual(namesOf(await client.run('List', { path: dir })), [`${dir}/kept dir`])
  assert.ok(existsSync(join(dir, 'kept/file')))
})

test('a listing has every name once, whatever it contains, and a handle yields it in parts', async (t) => {
  const { client, dir } = begin(t)
  const names = ['a b', 'new\nline', 'ünï', '*', '-rf', '...', '\u{1f40c}', ...Array.from({ length: 1500 }, (_, n) => `n${String(n)}`)] // prettier-ignore
  for (const name of names) writeFileSync(join(dir, name), '')
  const wanted = names.map((name) => `${dir}/${name} file`).toSorted()
  assert.deepEqual(namesOf(await client.run('List', { path: dir })), wanted)
  assert.equal(namesOf(await client.run('List', { path: `${dir}/` }))[0]?.startsWith(`${dir}/`), true)
  const handle = numberOf(await client.run('OpenDir', { path: dir }), 'Handle')
  const seen: string[] = []
  for (const limit of [null, 0, 7, 4_294_967_295, 100_000, 1000, 1000]) {
    const part = namesOf(await client.run('ReadDir', { handle, limit }))
    assert.ok(part.length <= Math.min(Math.max(limit ?? 128, 1), 512))
    seen.push(...part)
  }
  assert.deepEqual(seen.toSorted(), wanted)
  assert.equal(namesOf(await client.run('ReadDir', { handle, limit: 5 })).length, 0)
  assert.match(await client.refusal('Read', { handle, offset: 0, len: null }), /handle 1 is a directory/)
  assert.match(await client.refusal('FSetStat', { handle, attrs: {} }), /handle 1 is a directory/)
  assert.equal(fieldOf(fieldOf(await client.run('FStat', { handle }), 'Stat'), 'kind'), 'dir')
})

test('a name that is not UTF-8 is listed with replacement characters', async (t) => {
  const { client, dir } = begin(t)
  writeFileSync(Buffer.concat([Buffer.from(`${dir}/x`), Buffer.from([0xff])]), '')
  assert.deepEqual(namesOf(await client.run('List', { path: dir })), [`${dir}/x\u{fffd} file`])
})

test('a folder with more names than fit one frame is refused, and can be read in parts', async (t) => {
  const { client, dir } = begin(t)
  await runCommand('sh', ['-c', 'cd "$0" && seq -f "%0200g" 1 13000 | xargs touch', dir], { timeoutMs: 60_000 })
  assert.match(await client.refusal('List', { path: dir }), /^readdir: .* \(os error 75\)$/)
  const handle = numberOf(await client.run('OpenDir', { path: dir }), 'Handle')
  let count = 0
  for (let part = -1; part !== 0; count += part) {
    part = namesOf(await client.run('ReadDir', { handle, limit: 100_000 })).length
  }
  assert.equal(count, 13_000)
})

test('written data can be read back from any offset, and a wrong length is refused', async (t) => {
  const { client, dir } = begin(t)
  const path = join(dir, 'file')
  const content = randomBytes(7 * MIB + 13)
  const handle = await client.open(path, { read: true, write: true, create: true, mode: 0o604 })
  assert.deepEqual(await client.write(handle, content, { len: content.length }), { ok: true, error: null, data: null })
  assert.equal(statSync(path).mode & 0o7777, 0o604)
  assert.ok((await client.read(handle)).equals(content))
  assert.ok(
    (await client.read(handle, { offset: MIB - 1, len: 3 * MIB })).equals(content.subarray(MIB - 1, 4 * MIB - 1)),
  )
  assert.equal((await client.read(handle, { offset: content.length })).length, 0)
  assert.equal((await client.read(handle, { offset: 2 ** 40, len: null })).length, 0)
  assert.equal((await client.read(handle, { len: 0 })).length, 0)
  await client.write(handle, Buffer.from('XYZ'), { offset: 5 })
  assert.equal((await client.read(handle, { offset: 4, len: 5 })).toString('latin1', 1, 4), 'XYZ')
  for (const len of [2, 4])
    assert.deepEqual(await client.write(handle, Buffer.from('abc'), { len }), {
      ok: false,
      error: `write length mismatch: expected ${String(len)}, wrote 3`,
      data: null,
    })
  assert.equal((await client.write(handle, Buffer.alloc(0), { len: 0 })).ok, true)
})

test('a handle that appends ignores offsets, and each handle does only what it was opened for', async (t) => {
  const { client, dir } = begin(t)
  const path = join(dir, 'log')
  const appending = await client.open(path, { append: true, create: true })
  await client.write(appending, Buffer.from('one '), { offset: 99 })
  await client.write(appending, Buffer.from('two'), { offset: 0 })
  assert.equal(readFileSync(path, 'utf8'), 'one two')
  assert.equal(statSync(path).mode & 0o7777, 0o644)
  const reading = await client.open(path)
  assert.equal((await client.write(reading, Buffer.from('x'))).error, 'write: handle 2 is not open for writing')
  assert.equal(await client.refusal('Read', { handle: appending, offset: 0, len: null }), 'read: handle 1 is not open for reading') // prettier-ignore
  assert.match(await client.refusal('ReadDir', { handle: reading, limit: 1 }), /handle 2 is a file/)
})

test('operations never block on special files: a FIFO without another end, a device, a file without seek', async (t) => {
  const { client, dir } = begin(t)
  const fifo = join(dir, 'fifo')
  await runCommand('mkfifo', [fifo], { timeoutMs: 10_000 })
  assert.match(await client.refusal('OpenFile', { path: fifo, options: { write: true } }), /os error 6/)
  const handle = await client.open(fifo)
  assert.match(await client.refusal('Read', { handle, offset: 0, len: null }), /Illegal seek \(os error 29\)/)
  const zero = await client.open('/dev/zero')
  assert.equal((await client.read(zero, { len: 2 * MIB + 5 })).length, 2 * MIB + 5)
  const folder = await client.open(dir)
  assert.match(await client.refusal('Read', { handle: folder, offset: 0, len: null }), /Is a directory \(os error 21\)/)
  assert.match((await client.read(await client.open('/proc/self/status'))).toString(), /^Name:\tperl\n/)
  assert.match(await client.refusal('Copy', { src: fifo, dst: join(dir, 'to') }), /not a regular file/)
})

test('a failed write is reported at once, and its further data is ignored', async (t) => {
  const { client } = begin(t)
  const handle = await client.open('/dev/full', { write: true })
  const id = client.ask('Write', { handle, offset: 0, len: null })
  client.send(id, Buffer.from('x'))
  assert.deepEqual(await client.answer(id), {
    ok: false,
    error: 'write: No space left on device (os error 28)',
    data: null,
  })
  for (const data of ['more', '', '']) client.send(id, Buffer.from(data))
  await client.run('Stat', { path: '/', follow_symlink: true })
  const answers = client.agent.received.filter((message) => message.id === id)
  assert.equal(answers.length, 1)
})
