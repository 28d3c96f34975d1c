import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import {
  withParentFolder,
  openInRoot,
  resolveInRoot,
  PathInRootError,
} from '../../../../src/worker/drivers/shared/resolve-in-root.ts'

let base = ''
let root = ''

before(async () => {
  base = await mkdtemp(join(tmpdir(), 'root-path-'))
  root = join(base, 'root')
  await mkdir(join(root, 'a/b'), { recursive: true })
  await writeFile(join(base, 'outside'), 'host secret')
  await writeFile(join(root, 'a/b/file'), 'inside')
  await symlink('/a/b', join(root, 'absolute'))
  await symlink('../../../../../../../outside', join(root, 'a/b/climb'))
  await symlink(join(base, 'outside'), join(root, 'host'))
  await symlink('loop', join(root, 'loop'))
})
after(async () => {
  await rm(base, { recursive: true })
})

test('an absolute symlink resolves from the root', async () => {
  const found = await resolveInRoot(root, '/absolute/file')
  assert.deepEqual(found, { hostPath: join(root, 'a/b/file'), guestPath: '/a/b/file', exists: true })
})

test('neither `..` nor symlinks lead out of the root', async () => {
  for (const path of ['/a/b/climb', '/host', '../outside', '/a/../../outside']) {
    const found = await resolveInRoot(root, path)
    assert.equal(found.exists, false, path)
    assert.ok(found.hostPath.startsWith(`${root}/`), path)
    await assert.rejects(openInRoot(root, path), (error) => error instanceof PathInRootError && error.code === 'ENOENT')
  }
})

test('a symlink as last part is kept when it must not be followed', async () => {
  assert.equal((await resolveInRoot(root, '/host', { followLast: false })).guestPath, '/host')
})

test('a loop of symlinks and a file used as folder are refused with their codes', async () => {
  await assert.rejects(
    resolveInRoot(root, '/loop'),
    (error) => error instanceof PathInRootError && error.code === 'ELOOP',
  )
  await assert.rejects(
    resolveInRoot(root, '/a/b/file/x'),
    (error) => error instanceof PathInRootError && error.code === 'ENOTDIR',
  )
})

test('openInRoot opens the file inside the root', async () => {
  const handle = await openInRoot(root, 'absolute/file')
  try {
    assert.equal(await handle.readFile('utf8'), 'inside')
  } finally {
    await handle.close()
  }
})

test('a write through withParentFolder stays inside the root', async () => {
  await withParentFolder({ root }, '/absolute/new', async (folder, name) => {
    await writeFile(join(folder, name), 'new')
  })
  assert.equal(await readFile(join(root, 'a/b/new'), 'utf8'), 'new')
  await assert.rejects(
    withParentFolder({ root }, '/', () => Promise.resolve()),
    PathInRootError,
  )
  await assert.rejects(
    withParentFolder({ root }, '/none/of/this', () => Promise.resolve()),
    PathInRootError,
  )
})

test('missing parts are appended to the resolved ones', async () => {
  assert.deepEqual(await resolveInRoot(root, '/absolute/x/../../../y'), {
    hostPath: join(root, 'a/b/y'),
    guestPath: '/a/b/y',
    exists: false,
  })
})

const DEEP = Array.from({ length: 1_000 }, () => 'd').join('/')

test('a deep path holds few descriptors, on its way and at its end', async () => {
  await mkdir(join(root, 'deep', DEEP), { recursive: true })
  await symlink('../../../../a', join(root, 'deep/d/d/d/up'))
  const countOpen = (): number => readdirSync('/proc/self/fd').length
  for (const isFresh of [false, true]) {
    const before = countOpen()
    const atEnd = await withParentFolder({ root, isFresh }, `/deep/${DEEP}/new`, () => Promise.resolve(countOpen()))
    assert.ok(atEnd - before <= 6, `${String(atEnd - before)} more`)
    assert.equal((await resolveInRoot(root, '/deep/d/d/d/up/b/file', { isFresh })).guestPath, '/a/b/file')
    assert.equal((await resolveInRoot(root, `/deep/${DEEP}/../e`, { isFresh })).guestPath, `/deep/${DEEP.slice(2)}/e`)
    assert.equal(countOpen(), before)
  }
})

test('symlinks that make a path of thousands of steps are refused, whether its end exists or not', async () => {
  await mkdir(join(root, 'long', DEEP), { recursive: true })
  for (const at of [0, 1, 2]) {
    await symlink(`/long/${DEEP}/to${String(at)}`, join(root, `long/from${String(at)}`))
    await symlink(`/long/from${String(at + 1)}`, join(root, 'long', DEEP, `to${String(at)}`))
    await symlink(`/long/missing${String(at + 1)}/${DEEP}`, join(root, `long/missing${String(at)}`))
  }
  await writeFile(join(root, 'long/from3'), '')
  const isTooLong = (error: unknown): boolean => error instanceof PathInRootError && error.code === 'ELOOP'
  assert.equal((await resolveInRoot(root, '/long/from2')).exists, true)
  assert.equal((await resolveInRoot(root, '/long/missing2')).exists, false)
  for (const path of ['/long/from0', '/long/missing0'])
    for (const isFresh of [false, true]) await assert.rejects(resolveInRoot(root, path, { isFresh }), isTooLong)
})

test('other work goes on while the deep path of a fresh root is resolved', async () => {
  await mkdir(join(root, 'fresh', DEEP), { recursive: true })
  let turns = 0
  const count = (): void => {
    turns += 1
    next = setImmediate(count)
  }
  let next = setImmediate(count)
  assert.equal((await resolveInRoot(root, `/fresh/${DEEP}`, { isFresh: true })).exists, true)
  clearImmediate(next)
  assert.ok(turns > 100, `${String(turns)} turns`)
})
