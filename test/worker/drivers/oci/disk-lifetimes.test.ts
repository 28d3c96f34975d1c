import assert from 'node:assert/strict'
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../../../src/lib/random.ts'
import type { Found, Step } from '../../../support/disk-lifetimes-process.ts'
import { noteFault } from '../../../support/reliability.ts'
import { makeTestImage, writeLayout } from '../../../support/test-image.ts'
import { whyNoOci } from '../../../support/oci-driver.ts'

// Images, disks and snapshots hold each other: random steps in any order, and kill -9 in the middle of them.

/** SANDYARD_LIFETIME_STEPS overrides the number. */
const STEPS = Number(process.env['SANDYARD_LIFETIME_STEPS'] ?? '160')
/** Steps take up to this long, so a kill hits any part of them. */
const MOST_MS = 40
const NAMES = ['a', 'b', 'c'] as const
const MOST_ALIVE = 2
const below = (limit: number): number => randomBelow(systemRandom, limit)
const pick = <Item>(items: readonly Item[]): Item | undefined => items[below(Math.max(1, items.length))]

test(
  `after each of ${String(STEPS)} random steps, all that lives has its content and its layers, and nothing else stays`,
  { skip: whyNoOci() ?? false },
  async (t) => {
    const dir = mkdtempSync(join(tmpdir(), 'sandyard-lifetimes-'))
    t.after(() => {
      rmSync(dir, { recursive: true })
    })
    const base = [{ path: 'name', content: 'base' }]
    for (const name of NAMES) {
      mkdirSync(join(dir, `layout-${name}`))
      const own = [{ path: 'name', content: name }]
      await writeLayout(await makeTestImage({ layers: [base, own] }), join(dir, `layout-${name}`))
    }
    const worker = new KilledWorker(dir)
    t.after(() => worker.kill())
    await worker.start()

    const disks = new Map<string, string>()
    const snapshots = new Map<string, string>()
    const loaded = new Set<string>()
    const done: Step[] = []
    let crashes = 0
    let last = 0
    const id = (): string => `00000000-0000-7000-8000-${String(++last).padStart(12, '0')}`

    /** Does a step, a quarter of the time with a kill in the middle, after which it is asked for again. */
    async function perform(step: Step): Promise<unknown> {
      done.push(step)
      if (below(4) === 0) {
        crashes += 1
        void worker.ask(step).catch(() => undefined)
        await systemClock.sleep(below(MOST_MS))
        await worker.kill()
        await worker.start()
      }
      return await worker.ask(step)
    }
    const anImage = async (): Promise<string> => {
      const name = pick(NAMES) ?? 'a'
      const reference = `localhost/${name}:latest`
      if (!loaded.has(reference)) await perform({ do: 'load', layout: join(dir, `layout-${name}`), reference })
      loaded.add(reference)
      return reference
    }

    const moves: readonly (() => Promise<void>)[] = [
      async () => {
        const sandbox = id()
        await perform({ do: 'create', sandbox, from: { image: await anImage() } })
        disks.set(sandbox, '')
      },
      async () => {
        const snapshot = pick([...snapshots.keys()])
        if (snapshot === undefined) return
        const sandbox = id()
        await perform({ do: 'create', sandbox, from: { snapshot } })
        disks.set(sandbox, snapshots.get(snapshot) ?? '')
      },
      async () => {
        const sandbox = pick([...disks.keys()])
        if (sandbox === undefined) return
        const text = `text ${String(++last)}`
        await perform({ do: 'write', sandbox, text })
        disks.set(sandbox, text)
      },
      async () => {
        const sandbox = pick([...disks.keys()])
        if (sandbox === undefined) return
        const snapshot = id()
        await perform({ do: 'snapshot', snapshot, sandbox })
        snapshots.set(snapshot, disks.get(sandbox) ?? '')
      },
      async () => {
        const sandbox = pick([...disks.keys()])
        if (sandbox === undefined) return
        await perform({ do: 'delete', sandbox })
        disks.delete(sandbox)
      },
      async () => {
        const snapshot = pick([...snapshots.keys()])
        if (snapshot === undefined) return
        await perform({ do: 'discard', snapshot })
        snapshots.delete(snapshot)
      },
      async () => {
        const removed = below(2) === 0 ? null : (pick([...loaded]) ?? null)
        await perform({ do: 'prune', removed })
        if (removed !== null) loaded.delete(removed)
      },
    ]
    const check = async (): Promise<void> => {
      const found = (await worker.ask({ do: 'look' })) as Found
      const expected = { disks: Object.fromEntries(disks), snapshots: Object.fromEntries(snapshots) }
      assert.deepEqual(sorted(found), sorted(expected), `after ${JSON.stringify(done.slice(-12))}`)
    }

    const [, , , , deleteOne, discardOne] = moves
    for (let step = 0; step < STEPS; step++) {
      // Few things live at a time, so that each is often the last one that needs its layers.
      const isCrowded = below(2) === 0
      const move =
        isCrowded && disks.size > MOST_ALIVE ? deleteOne
        : isCrowded && snapshots.size > MOST_ALIVE ? discardOne
        : moves[below(moves.length)] // prettier-ignore
      await move?.()
      await check()
    }
    for (const sandbox of disks.keys()) await perform({ do: 'delete', sandbox })
    for (const snapshot of snapshots.keys()) await perform({ do: 'discard', snapshot })
    for (const removed of loaded) await perform({ do: 'prune', removed })
    await worker.ask({ do: 'prune', removed: null })
    const left = ['images/layers', 'sandboxes/disks/kept', 'sandboxes/disks/snapshots']
    assert.deepEqual(
      left.flatMap((folder) => readdirSync(join(dir, folder))),
      [],
    )
    noteFault({
      area: 'data',
      fault: 'kill -9 of a worker in the middle of a random step on images, disks and snapshots',
      injected: crashes,
      checked: 'after each step, all that lives has its content and its layers; at the end nothing is left',
      found: `${String(done.length)} steps as expected`,
    })
    t.diagnostic(`${String(done.length)} steps, ${String(crashes)} of them with kill -9 in the middle`)
  },
)

function sorted(found: Found): readonly unknown[] {
  return [found.disks, found.snapshots].map((all) => Object.entries(all).toSorted(([a], [b]) => (a < b ? -1 : 1)))
}

class KilledWorker {
  readonly #dir: string
  #process: ChildProcessByStdio<Writable, Readable, null> | null = null
  #replies: AsyncIterator<string> | null = null
  constructor(dir: string) {
    this.#dir = dir
  }
  async start(): Promise<void> {
    const program = join(import.meta.dirname, '../../../support/disk-lifetimes-process.ts')
    this.#process = spawn(process.execPath, [program, this.#dir], { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#process.stdin.on('error', () => undefined) // it was killed
    this.#replies = createInterface({ input: this.#process.stdout })[Symbol.asyncIterator]()
    await this.#replies.next()
  }
  async kill(): Promise<void> {
    const running = this.#process
    if (running === null) return
    this.#process = null
    running.kill('SIGKILL')
    if (running.exitCode === null && running.signalCode === null) await once(running, 'exit')
  }
  /** Resolves with the result of a step. Rejects with why it failed. */
  async ask(step: Step): Promise<unknown> {
    this.#process?.stdin.write(`${JSON.stringify(step)}\n`)
    const reply = await this.#replies?.next()
    if (reply?.done !== false) throw new Error('the worker was killed')
    const { result, error } = JSON.parse(reply.value) as { readonly result?: unknown; readonly error?: string }
    if (error !== undefined) throw new Error(`${step.do}: ${error}`)
    return result
  }
}
