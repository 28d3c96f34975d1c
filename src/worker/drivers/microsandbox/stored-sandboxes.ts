import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type SandboxId } from '../../../domain/ids.ts'
import type { ImageConfig } from '../../images/image.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'

/**
 * A sandbox that has started at least once, so that the runtime stores its disk. The disk is usable only with the image
 * of the first start. The sandbox therefore keeps that image even if the tag moves, and needs no registry credential
 * again.
 */
export type StoredSandbox = {
  readonly image: { readonly digest: string; readonly config: ImageConfig }
  readonly disk_size_mib: number
  /** The variables that the runtime has stored. Absent: by an earlier version, which stored those of the spec. */
  readonly env?: Readonly<Record<string, string>>
  /** The path of the image's bundle of certificates. Absent: by an earlier version. */
  readonly ca_bundle?: string
}

/** The stored sandboxes of this driver, with one file for each. */
export type StoredSandboxes = {
  list(): Promise<readonly SandboxId[]>
  read(sandbox: SandboxId): Promise<StoredSandbox | null>
  write(sandbox: SandboxId, kept: StoredSandbox): Promise<void>
  delete(sandbox: SandboxId): Promise<void>
}

/** Opens the folder of stored sandboxes. Creates it if it is missing. */
export async function openStoredSandboxes(dir: string): Promise<StoredSandboxes> {
  const folder = join(dir, 'kept')
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const pathOf = (sandbox: SandboxId): string => join(folder, `${sandbox}.json`)
  return {
    async list() {
      const names = (await readdir(folder)).filter((name) => name.endsWith('.json'))
      return names.map((name) => asId<SandboxId>(name.slice(0, -'.json'.length)))
    },
    read: (sandbox) => readJson<StoredSandbox>(pathOf(sandbox)),
    write: (sandbox, kept) => writeJsonAtomically(pathOf(sandbox), kept),
    delete: (sandbox) => rm(pathOf(sandbox), { force: true }),
  }
}
