/** The flags of `sandyard worker token` that limit what the worker may claim. */
import type { Command } from 'commander'
import type { WorkerBounds } from '../../domain/workers/worker-bounds.ts'
import { UsageError, type Call } from '../command.ts'
import { findOrg, type OperatorDeps } from './operator.ts'

const MAX_FLAGS = ['max-vcpus', 'max-memory-mib', 'max-disk-mib'] as const
const MAX_RULE = /^[1-9]\d{0,8}$/

/** Adds the flags to a command. */
export function addBoundsFlags(command: Command): Command {
  const appended = (slug: string, slugs: string | undefined): string =>
    slugs === undefined ? slug : `${slugs},${slug}`
  return command
    .option('--max-vcpus <count>', 'the most vCPUs that the worker may offer; no maximum unless given')
    .option('--max-memory-mib <mib>', 'the most memory that it may offer')
    .option('--max-disk-mib <mib>', 'the most disk space that it may offer')
    .option('--shared-volumes', 'let it serve volumes of a storage that workers share; not together with --org')
    .option('--org <slug>', 'an organization whose sandboxes it may get, repeatable; all unless given', appended)
}

/** The bounds that the flags of a call ask for. Throws `UsageError` for an invalid number or an unknown organization. */
export async function readBoundsFlags({ db }: Pick<OperatorDeps, 'db'>, call: Call): Promise<WorkerBounds> {
  const [max_vcpus = null, max_memory_mib = null, max_disk_mib = null] = MAX_FLAGS.map((flag) => readMax(call, flag))
  const slugs = call.texts['org']?.split(',') ?? []
  const shared_volumes = call.switches.has('shared-volumes')
  if (shared_volumes && slugs.length > 0)
    throw new UsageError('--shared-volumes and --org exclude each other: a shared storage has the volumes of all')
  const orgs = await Promise.all(slugs.map((slug) => findOrg(db, slug)))
  const org_ids = orgs.length === 0 ? null : [...new Set(orgs.map(({ id }) => id))]
  return { max_vcpus, max_memory_mib, max_disk_mib, shared_volumes, org_ids }
}

function readMax({ texts }: Call, flag: (typeof MAX_FLAGS)[number]): number | null {
  const text = texts[flag]
  if (text === undefined) return null
  if (!MAX_RULE.test(text)) throw new UsageError(`--${flag} takes a whole number from 1 to 999999999, not '${text}'`)
  return Number(text)
}
