import { open, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type WorkerId } from '../../domain/ids.ts'
import { hasErrorCode } from '../../lib/error-code.ts'

/**
 * The identity of this machine as a worker. The credential is created before the machine joins, so that every retry of
 * the join request sends the same credential.
 */
export type WorkerIdentity = {
  readonly credential: string
  /** The worker's data in the control plane. Null until the machine has joined. */
  readonly joined: {
    readonly url: string
    readonly worker_id: WorkerId
    readonly name: string
    /** The SHA-256 of the control plane's public key, in hex. Null or absent: certificate authorities decide. */
    readonly pin?: string | null
  } | null
}

/** The identity of a worker that has joined. */
export type JoinedIdentity = WorkerIdentity & { readonly joined: NonNullable<WorkerIdentity['joined']> }

/** Whether a data folder belongs to a worker. */
export async function isWorkerFolder(dataDir: string): Promise<boolean> {
  return (await readIdentity(dataDir)) !== null
}

/** Reads the identity from a data folder. Null when the folder has none. */
export async function readIdentity(dataDir: string): Promise<WorkerIdentity | null> {
  try {
    // `writeIdentity` wrote it.
    const { credential, joined } = JSON.parse(await readFile(identityFile(dataDir), 'utf8')) as WorkerIdentity
    return { credential, joined: joined === null ? null : { ...joined, worker_id: asId<WorkerId>(joined.worker_id) } }
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw new Error(`the worker's identity in ${identityFile(dataDir)} can't be read`, { cause: error })
  }
}

/**
 * Replaces the identity atomically: after a power cut, the file contains either the new or the old identity. Only its
 * owner can read it.
 */
export async function writeIdentity(dataDir: string, identity: WorkerIdentity): Promise<void> {
  const path = identityFile(dataDir)
  const file = await open(`${path}.tmp`, 'w', 0o600)
  await file.writeFile(JSON.stringify(identity))
  await file.sync()
  await file.close()
  await rename(`${path}.tmp`, path)
  const folder = await open(dataDir)
  await folder.sync()
  await folder.close()
}

/** Deletes the identity. The machine can then join as a new worker. */
export async function deleteIdentity(dataDir: string): Promise<void> {
  await rm(identityFile(dataDir), { force: true })
}

function identityFile(dataDir: string): string {
  return join(dataDir, 'worker.json')
}
