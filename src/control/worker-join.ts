import { hashSecret } from '../domain/api-key.ts'
import { asId, type WorkerId } from '../domain/ids.ts'
import * as workers from '../store/workers.ts'
import type { ControlDeps } from './deps.ts'

/** Registers a worker by name, or renews the credential of the one that has it. Answers its id. */
export async function registerWorker(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids'>,
  input: { readonly name: string; readonly credential: string },
): Promise<WorkerId> {
  const id = asId<WorkerId>(deps.uuids.next())
  const worker = { id, name: input.name, credentialSha256: hashSecret(input.credential), now: deps.clock.now() }
  return deps.db.asSystem((q) => workers.register(q, worker))
}

/** The worker that a credential belongs to, or null. */
export async function authenticateWorker(deps: Pick<ControlDeps, 'db'>, credential: string): Promise<WorkerId | null> {
  return deps.db.asSystem((q) => workers.findByCredential(q, hashSecret(credential)))
}
