import { text } from 'node:stream/consumers'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type RunId, type VolumeId } from '../../src/domain/ids.ts'
import type { NamedMount } from '../../src/domain/spec/spec.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'
import { makeDesiredRun } from './desired-run.ts'
import type { TestDriver } from './kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

/** The options of a mount that may be written to. */
export const MOUNT_OPTIONS = { readonly: false, noexec: false, nosuid: false, nodev: false }
export const VOLUME_KEY = { org_id: asId<OrgId>('org'), volume_id: asId<VolumeId>('data') }
/** The volume that the runs of `runWithVolume` mount. */
export const VOLUME = {
  ...VOLUME_KEY,
  kind: 'managed',
  name: 'data',
  capacity_bytes: null,
  org_capacity_bytes: null,
} as const

/** Makes a run that mounts the volume at `/data`. */
export function runWithVolume(more: Partial<NamedMount> = {}, user: string | null = null): DesiredRun {
  const mount: NamedMount = {
    type: 'named',
    name: 'data',
    guest: '/data',
    options: MOUNT_OPTIONS,
    stat_virtualization: 'strict',
    host_permissions: 'private',
    ...more,
  }
  const runtime = { ...DEFAULT_SPEC_FOR_TESTS.runtime, user }
  return { ...makeDesiredRun({ ...POD_SPEC, runtime, mounts: [mount] }), volumes: [VOLUME] }
}

/** Runs a script of the shell in a sandbox, and resolves with its output. */
export async function runScript(driver: TestDriver, id: RunId, script: string): Promise<string> {
  const guest = await driver.guestOf(id)
  const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
  const process = await guest.exec({ cmd: 'sh', args: ['-c', script], ...plain })
  process.stdin.end()
  const [out] = await Promise.all([text(process.stdout), process.exited])
  return out
}
