import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import fc from 'fast-check'
import { VolumeFileError, type VolumeFiles } from '../../../src/contract/volumes/volume-protocol.ts'
import { errorCodeOf } from '../../../src/lib/error-code.ts'
import { contentFrom, describeTree, namesBeneath, SERVED, textOf, unfinishedIn } from './volume-folder.ts'

const TREES = { 'in a folder': 100, 'in a Pod': 15 } // in a Pod, each operation is a process
const OPERATIONS_OF_TREE = 30
const SECRET = 'what lies outside'

const plainName = fc.constantFrom('a', 'b', 'c', 'd', 'é', 'secret', 'canary')
const oddName = fc.oneof(
  fc.constantFrom(
    '..',
    '.',
    '',
    '...',
    ' ',
    '\n',
    '-rf',
    '*',
    '\\',
    'nul\0',
    '\ud800',
    '.sandyard-unfinished-1',
    '~',
    '%2e%2e',
  ),
  fc.string({ unit: 'binary', maxLength: 8 }),
  fc.integer({ min: 250, max: 260 }).map((length) => 'x'.repeat(length)),
  fc.integer({ min: 84, max: 87 }).map((length) => '€'.repeat(length)),
)
const name = fc.oneof({ arbitrary: plainName, weight: 9 }, { arbitrary: oddName, weight: 1 })
const askedPath = fc
  .record({
    slash: fc.constantFrom('/', '/', '/', '', '//', '/./', '/../'),
    names: fc.oneof(
      { arbitrary: fc.array(name, { maxLength: 5 }), weight: 50 },
      { arbitrary: fc.array(plainName, { minLength: 2000, maxLength: 2100 }), weight: 1 },
    ),
    end: fc.constantFrom('', '', '', '/', '/.', '/..'),
  })
  .map(({ slash, names, end }) => slash + names.join('/') + end)

const treePath = fc.array(plainName, { minLength: 1, maxLength: 4 }).map((names) => names.join('/'))
const linkTarget = fc.oneof(
  fc
    .array(fc.oneof({ arbitrary: plainName, weight: 2 }, fc.constantFrom('..', '.', '')), { maxLength: 6 })
    .map((names) => names.join('/') || '.'),
  fc.constantFrom(
    '/',
    '/etc/passwd',
    '/proc/self/root/etc/passwd',
    '/proc/self/cwd',
    '..',
    '../canary',
    '../canary/secret',
    '../../canary/secret',
    '../../../canary',
    '../volume/a',
    '../volume/../canary/secret',
    'a/../../canary/secret',
    './'.repeat(1000) + 'a',
    'a/'.repeat(1000),
    'a/../'.repeat(700) + '../canary',
    'OUTSIDE',
    'OUTSIDE/secret',
  ),
)
const treeEntry = fc.record({
  path: treePath,
  kind: fc.constantFrom('file', 'folder', 'link', 'link'),
  target: linkTarget,
})

const pathOf = { path: askedPath }
const operation = fc.oneof(
  fc.record({ kind: fc.constantFrom('list', 'stat', 'exists', 'read', 'write', 'mkdir'), ...pathOf }),
  fc.record({ kind: fc.constantFrom('copy', 'rename'), ...pathOf, to: askedPath }),
  fc.record({ kind: fc.constant('remove'), ...pathOf, isRecursive: fc.boolean() }),
)
type Operation = typeof operation extends fc.Arbitrary<infer T> ? T : never

for (const { how, make } of SERVED)
  test(`no operation on any path of any tree leaves the volume (${how})`, { timeout: 120_000 }, async () => {
    await using volume = await make()
    const { files, root, dir } = volume
    const canary = join(dir, 'canary')
    mkdirSync(join(canary, 'a/b'), { recursive: true })
    for (const path of ['secret', 'a/secret', 'a/b/c']) writeFileSync(join(canary, path), SECRET)
    symlinkSync('a', join(canary, 'd'))
    const before = describeTree(canary)
    const beside = readdirSync(dir).toSorted()
    const openFiles = readdirSync('/proc/self/fd').length

    const trees = fc.array(treeEntry, { minLength: 3, maxLength: 15 })
    const operations = fc.array(operation, { minLength: OPERATIONS_OF_TREE, maxLength: OPERATIONS_OF_TREE })
    await fc.assert(
      fc.asyncProperty(trees, operations, async (tree, asked) => {
        for (const left of readdirSync(root)) rmSync(join(root, left), { recursive: true })
        for (const entry of tree) grow(root, { ...entry, target: entry.target.replace('OUTSIDE', canary) })
        for (const one of asked) {
          const told = await outcomeOf(files, one)
          assert.ok(!told.includes(SECRET) && !told.includes('root:'), `told ${told}`)
        }
        for (const found of namesBeneath(root))
          assert.ok(!isSecret(join(root, found)), `${found} holds what lies outside`)
        assert.deepEqual(unfinishedIn(root), [])
        assert.equal(describeTree(canary), before)
        assert.deepEqual(readdirSync(dir).toSorted(), beside)
      }),
      // No shrinking: a change outside the volume is not undone, so every later case would fail too.
      { numRuns: TREES[how], endOnFailure: true },
    )
    assert.ok(readdirSync('/proc/self/fd').length <= openFiles + 1, 'descriptors are left open')
  })

/** Creates an entry of a tree, unless something else is in its place. */
function grow(root: string, entry: { readonly path: string; readonly kind: string; readonly target: string }): void {
  const path = join(root, entry.path)
  try {
    makeFoldersOnly(root, dirname(entry.path))
    if (entry.kind === 'folder') mkdirSync(path)
    else if (entry.kind === 'file') writeFileSync(path, 'inside', { flag: 'wx' })
    else symlinkSync(entry.target, path)
  } catch (error) {
    if (errorCodeOf(error) === null) throw error
  }
}

/** Makes missing folders of a path. Stops at a symlink, which `mkdir -p` would follow, perhaps out of the volume. */
function makeFoldersOnly(root: string, path: string): void {
  let at = root
  for (const step of path.split('/').filter((part) => part !== '.')) {
    const isThere = readdirSync(at, { withFileTypes: true }).find((entry) => entry.name === step)
    at = join(at, step)
    if (isThere === undefined) mkdirSync(at)
    else if (!isThere.isDirectory()) throw Object.assign(new Error('in the way'), { code: 'ENOTDIR' })
  }
}

function isSecret(path: string): boolean {
  try {
    return readFileSync(path, { encoding: 'utf8', flag: 0o400000 /* O_NOFOLLOW */ }).includes(SECRET)
  } catch (error) {
    if (errorCodeOf(error) !== null) return false // the path names a folder or a symlink
    throw error
  }
}

/**
 * Resolves with the result or the refusal of an operation. Rejects for any other error, and for a message with a host
 * path.
 */
async function outcomeOf(files: VolumeFiles, asked: Operation): Promise<string> {
  try {
    return JSON.stringify(await run(files, asked)) ?? 'done'
  } catch (error) {
    if (!(error instanceof VolumeFileError)) throw error
    assert.ok(!error.message.includes('/proc/self/fd') && !error.message.includes('sandyard-volume-'), error.message)
    return error.code
  }
}

async function run(files: VolumeFiles, asked: Operation): Promise<unknown> {
  const { path } = asked
  if ('to' in asked) return await (asked.kind === 'copy' ? files.copy(path, asked.to) : files.rename(path, asked.to))
  if ('isRecursive' in asked) return await files.remove(path, { isRecursive: asked.isRecursive })
  switch (asked.kind) {
    case 'list':
      return await files.list(path)
    case 'stat':
      return await files.stat(path)
    case 'exists':
      return await files.exists(path)
    case 'read':
      return await textOf(files, path)
    case 'write':
      return await files.write(path, contentFrom('inside'))
    default:
      return await files.mkdir(path)
  }
}
