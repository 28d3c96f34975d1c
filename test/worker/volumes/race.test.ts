import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { lstatSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { VolumeFileError } from '../../../src/contract/volumes/volume-protocol.ts'
import {
  contentFrom,
  describeTree,
  namesBeneath,
  SERVED,
  textOf,
  unfinishedIn,
  type VolumeFolder,
} from './volume-folder.ts'

const ROUNDS = { 'in a folder': 100, 'in a Pod': 24 } // in a Pod, each operation is a process
/** Slow operations run only in every fourth round. */
const ROUNDS_EACH = 4
const SECRET = 'what lies outside'

for (const { how, make } of SERVED)
  test(
    `however fast a sandbox swaps folders, links and FIFOs, no file request reads or changes anything outside of the volume (${how})`,
    { timeout: 60_000 },
    async () => {
      await using volume = await make()
      const { files, root, dir } = volume
      const outside = join(dir, 'outside')
      await mkdir(join(outside, 'folder'), { recursive: true })
      await writeFile(join(outside, 'secret'), SECRET)
      await writeFile(join(outside, 'folder/secret'), SECRET)
      await symlink('folder', join(outside, 'link'))
      const before = describeTree(outside)
      await using sandbox = await startSandbox(volume, 'outside')

      const operations = {
        read: () => textOf(files, '/x/secret'),
        readSwapped: () => textOf(files, '/f'),
        list: () => files.list('/x'),
        listRoot: () => files.list('/'),
        stat: () => files.stat('/x/secret'),
        exists: () => files.exists('/x/folder'),
        write: () => files.write('/x/secret', contentFrom('inside')),
        writeSwapped: () => files.write('/f', contentFrom('inside')),
        mkdir: () => files.mkdir('/x/made/deep'),
        copyOut: () => files.copy('/x/secret', '/copied'),
        copySwapped: () => files.copy('/f', '/copied-f'),
        copyInto: () => files.copy('/copied', '/x/secret'),
        copyTree: () => files.copy('/x', '/tree/a'),
        copyTreeInto: () => files.copy('/tree', '/x/tree'),
        renameInto: () => files.rename('/copied', '/x/folder/moved'),
        renameOut: () => files.rename('/x/secret', '/taken'),
        removeFile: () => files.remove('/x/secret', { isRecursive: false }),
        removeTree: () => files.remove('/tree', { isRecursive: true }),
        removeTreeBelow: () => files.remove('/x/folder', { isRecursive: true }),
        removeTreeSwapped: () => files.remove('/x', { isRecursive: true }),
      }
      const seen = new Map<string, Set<string>>(Object.keys(operations).map((name) => [name, new Set()]))
      for (let round = 0; round < ROUNDS[how]; round += 1)
        for (const [name, operation] of Object.entries(operations)) {
          if (name.includes('Tree') && round % ROUNDS_EACH !== 0) continue
          const outcome = await outcomeOf(operation)
          assert.ok(!outcome.includes(SECRET), `${name} told what lies outside: ${outcome}`)
          assert.ok(!outcome.includes('/x/link'), `${name} listed what lies outside: ${outcome}`)
          seen.get(name)?.add(outcome.startsWith('refused') ? outcome : 'done')
        }
      await sandbox[Symbol.asyncDispose]()

      assert.equal(describeTree(outside), before)
      for (const name of namesBeneath(root))
        if (lstatSync(join(root, name)).isFile())
          assert.ok(!(await readFile(join(root, name), 'utf8')).includes(SECRET), `${name} holds what lies outside`)
      assert.deepEqual(unfinishedIn(root), [])
      const disturbed = ['read', 'list', 'write', 'mkdir', 'copyTree'].map((name) => seen.get(name) ?? new Set())
      // In a Pod there are too few rounds to tell it of each operation.
      const judged = how === 'in a Pod' ? [new Set(disturbed.flatMap((outcomes) => [...outcomes]))] : disturbed
      for (const outcomes of judged)
        assert.ok(outcomes.has('done') && outcomes.size > 1, 'an operation was never disturbed by a swap, or always')
    },
  )

async function startSandbox({ root, user }: VolumeFolder, outside: string): Promise<AsyncDisposable> {
  const program = new URL('../../support/volume-race-process.ts', import.meta.url).pathname
  const child = spawn(process.execPath, [program, root, outside], { stdio: ['pipe', 'pipe', 'inherit'], ...user })
  const ended = once(child, 'exit')
  await once(child.stdout, 'data')
  return {
    async [Symbol.asyncDispose]() {
      child.stdin.end()
      await ended
    },
  }
}

/** Resolves with the result or the refusal of an operation. Rejects for any other error. */
async function outcomeOf(operation: () => Promise<unknown>): Promise<string> {
  try {
    return JSON.stringify(await operation()) ?? 'done'
  } catch (error) {
    if (!(error instanceof VolumeFileError)) throw error
    return `refused: ${error.code}`
  }
}
