import { makeBatch } from '../../lib/batch.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { ControlDeps, KeyUse } from '../deps.ts'

/** The most keys whose use is written by one statement. */
const USES_MAX = 256

/**
 * Writes down when keys were used, together and behind the back of the requests: none waits for it, and one that can't
 * be written is reported in the log and lost.
 */
export function makeKeyUseRecorder({ db, log }: Pick<ControlDeps, 'db' | 'log'>): ControlDeps['noteKeyUse'] {
  const write = makeBatch<KeyUse, null>({
    async run(uses) {
      await db.commitStatement('system', apiKeys.recordUses(uses))
      return uses.map(() => null)
    },
    groupOf: () => '',
    maxItems: USES_MAX,
    maxInFlight: 1,
  })
  const note = async (use: KeyUse): Promise<void> => {
    try {
      await write(use)
    } catch (error) {
      log.warn({ error, api_key_id: use.id }, 'the last use of an API key could not be written down')
    }
  }
  return (use) => void note(use) // it never rejects
}
