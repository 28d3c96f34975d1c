import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { asId, type OrgId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import {
  openImageStore,
  type ImageStore,
  type ImageStoreDeps,
  type ResolveOptions,
} from '../../../src/worker/images/image-store.ts'
import { outboundHttp } from '../../support/outbound-http.ts'

export const UID_SHIFT = 1_000_000
export const isRoot = process.getuid?.() === 0
/** The reason to skip a test that sets owners, creates devices or mounts file systems. False for root. */
export const NEEDS_ROOT = isRoot ? false : 'unpacking layers with shifted owners needs root'

/** Makes a temporary folder, which is deleted when the test ends. */
export async function makeFolder(t: TestContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'sandyard-images-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** Opens an image store in a folder, with short timeouts. */
export function openStore(dir: string, deps: Partial<ImageStoreDeps> = {}): Promise<ImageStore> {
  return openImageStore({
    dir,
    uidShift: UID_SHIFT,
    clock: systemClock,
    log: makeLog('silent'),
    http: outboundHttp(),
    defaultRegistry: 'registry.example',
    timeouts: { replyMs: 5_000, idleMs: 5_000 },
    ...deps,
  })
}

export const TEST_ORG = asId<OrgId>('00000000-0000-4000-8000-00000000000a')

/** Options of an anonymous caller who pulls a missing image. */
export function wanted(options: Partial<ResolveOptions> = {}): ResolveOptions {
  return { org: TEST_ORG, policy: 'if_missing', auth: null, signal: AbortSignal.timeout(30_000), ...options }
}
