import { refusalProblem } from '../../../domain/refusal.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ControlSettings } from '../../deps.ts'

/** The dependency of a use case that checks the size of a disk against the operator's limit. */
export type DiskLimitDeps = { readonly settings: Pick<ControlSettings, 'maxDiskMib'> }

/** Throws `invalid_request` if a spec asks for a larger disk than the operator allows. */
export function requireDiskSize({ settings }: DiskLimitDeps, { resources }: SandboxSpec): void {
  const { disk_size_mib } = resources
  if (disk_size_mib === null || disk_size_mib <= settings.maxDiskMib) return
  throw refusalProblem({
    code: 'invalid_request',
    field: 'resources.disk_size_mib',
    seen: String(disk_size_mib),
    accepted: `at most ${String(settings.maxDiskMib)}, the operator's limit (SANDYARD_DISK_MAX_MIB)`,
  })
}
