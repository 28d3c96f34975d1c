import { open } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { asId, type OrgId, type SandboxId, type SnapshotId } from '../../src/domain/ids.ts'
import { systemClock, type Clock } from '../../src/lib/clock.ts'
import { makeKeyedMutex } from '../../src/lib/turns/keyed-mutex.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { openDiskSnapshots } from '../../src/worker/drivers/oci/disk/disk-snapshots.ts'
import { readImageUses, readLayersInUse, readPinnedImage } from '../../src/worker/drivers/oci/disk/pinned-image.ts'
import { openSandboxDisks } from '../../src/worker/drivers/oci/disk/sandbox-disks.ts'
import { openImageStore } from '../../src/worker/images/image-store.ts'
import { localHostCommands } from '../../src/worker/processes/system-calls.ts'
import { NO_DISK_RESERVE } from '../../src/worker/disk-reserve.ts'
import { outboundHttp } from './outbound-http.ts'

/**
 * A worker's images, disks and snapshots, in a process that a test kills. It reads one JSON `Step` per line, and prints one line with
 * its result. Its argument is the folder.
 */
export type Step =
  | { readonly do: 'load'; readonly layout: string; readonly reference: string }
  | {
      readonly do: 'create'
      readonly sandbox: string
      readonly from: { readonly image: string } | { readonly snapshot: string }
    }
  | { readonly do: 'write'; readonly sandbox: string; readonly text: string }
  | { readonly do: 'snapshot'; readonly snapshot: string; readonly sandbox: string }
  | { readonly do: 'delete'; readonly sandbox: string }
  | { readonly do: 'discard'; readonly snapshot: string }
  | { readonly do: 'prune'; readonly removed: string | null }
  | { readonly do: 'look' }

/** What `look` finds: the text on each disk and in each snapshot, or what is wrong with it. */
export type Found = {
  readonly disks: Readonly<Record<string, string>>
  readonly snapshots: Readonly<Record<string, string>>
}

const [dir = ''] = process.argv.slice(2)
const imagesDir = join(dir, 'images')
const ofDriver = { dir: join(dir, 'sandboxes'), imagesDir, key: null }
const disksDir = join(ofDriver.dir, 'disks')
const SIZE_MIB = 32
/** Where the test writes into a disk: beyond what mkfs wrote. */
const TEXT_AT = 20 * 1024 * 1024
const TEXT_BYTES = 16

// Layers are deleted some minutes after their last use. Each prune is an hour later.
let laterMs = 0
const clock: Clock = {
  ...systemClock,
  now: () => new Date(systemClock.now().getTime() + laterMs),
  monotonicMs: () => systemClock.monotonicMs() + laterMs,
}
const log = makeLog('silent')
const reserve = { ...NO_DISK_RESERVE, freeMib: () => Promise.resolve(100_000) }
const images = await openImageStore({
  dir: imagesDir,
  uidShift: 0,
  clock,
  log,
  http: outboundHttp({ allowed: '' }),
  defaultRegistry: 'registry.invalid',
  readLayersInUse: () => readLayersInUse(ofDriver),
})
const disks = await openSandboxDisks({
  dir: disksDir,
  imagesDir,
  defaultSizeMib: SIZE_MIB,
  poolSize: 0,
  reserve,
  overcommit: 100,
  commands: localHostCommands,
  random: systemRandom,
  clock,
  mountPooled: () => Promise.resolve(),
  unmountPooled: () => Promise.resolve(),
})
const snapshots = await openDiskSnapshots({
  dir: join(disksDir, 'snapshots'),
  imagesDir,
  disks,
  diskLocks: makeKeyedMutex(),
  mountedAt: (run) => join(dir, run),
  reserve,
  commands: localHostCommands,
  uidShift: 0,
  clock,
})
const NEVER = new AbortController().signal
const ORG = asId<OrgId>('00000000-0000-7000-8000-000000000001')

async function perform(step: Step): Promise<unknown> {
  switch (step.do) {
    case 'load':
      return (await images.load(step.layout, step.reference, NEVER)).digest
    case 'create': {
      const sandbox = asId<SandboxId>(step.sandbox)
      const { from } = step
      const found = 'snapshot' in from ? await snapshots.find(asId<SnapshotId>(from.snapshot)) : null
      if ('snapshot' in from && found === null) throw new Error('the snapshot is gone')
      const image =
        found?.image ??
        (await images.resolve('image' in from ? from.image : '', {
          org: ORG,
          policy: 'never',
          auth: null,
          signal: NEVER,
        }))
      await disks.prepare(sandbox, SIZE_MIB, found?.path ?? null)
      return disks.markReady(sandbox, image)
    }
    case 'write': {
      const file = await open(disks.pathOf(asId<SandboxId>(step.sandbox)), 'r+')
      await file.write(Buffer.from(step.text.padEnd(TEXT_BYTES)), 0, TEXT_BYTES, TEXT_AT)
      return await file.close()
    }
    case 'snapshot':
      return await snapshots.take({
        do: 'take',
        snapshot_id: asId<SnapshotId>(step.snapshot),
        sandbox_id: asId<SandboxId>(step.sandbox),
        records_integrity: false,
      })
    case 'delete':
      return await disks.delete(asId<SandboxId>(step.sandbox))
    case 'discard':
      return await snapshots.discard(asId<SnapshotId>(step.snapshot))
    case 'prune':
      laterMs += 3_600_000
      if (step.removed !== null) await images.remove(step.removed)
      return await images.collectGarbage(await readLayersInUse(ofDriver))
    case 'look':
      return await look()
  }
}

async function look(): Promise<Found> {
  const found: { disks: Record<string, string>; snapshots: Record<string, string> } = { disks: {}, snapshots: {} }
  for (const { kind, id } of await readImageUses(ofDriver)) {
    if (kind === 'sandbox' && !disks.isReady(asId<SandboxId>(id))) continue
    const folder = join(disksDir, kind === 'sandbox' ? 'kept' : 'snapshots', id)
    found[kind === 'sandbox' ? 'disks' : 'snapshots'][id] = await describe(folder)
  }
  return found
}

async function describe(folder: string): Promise<string> {
  const image = await readPinnedImage(folder, imagesDir).catch(() => null)
  if (image === null) return 'its image is gone'
  if (!image.layers.every((layer) => existsSync(join(layer, 'name')))) return 'a layer is empty'
  const file = await open(join(folder, 'disk.img'), 'r')
  const text = Buffer.alloc(TEXT_BYTES)
  await file.read(text, 0, TEXT_BYTES, TEXT_AT)
  await file.close()
  return text.toString().replaceAll('\0', '').trim()
}

process.stdout.write('{}\n') // it is open
for await (const line of createInterface({ input: process.stdin })) {
  const reply = await perform(JSON.parse(line) as Step).then(
    (result: unknown) => ({ result }),
    (error: unknown) => ({ error: String(error) }),
  )
  process.stdout.write(`${JSON.stringify(reply)}\n`)
}
