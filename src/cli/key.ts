import { makeApiKey } from '../control/bootstrap.ts'
import { systemClock } from '../lib/clock.ts'
import { makeLog } from '../lib/log.ts'
import { systemRandom } from '../lib/random.ts'
import { makeUuids } from '../lib/uuid.ts'
import { UsageError, type Command } from './command.ts'
import { borrowStore } from './open-store.ts'

const DAY_MS = 24 * 60 * 60 * 1000

export const key: Command = {
  usage: 'key create [--name N] [--expires-in-days D]',
  summary: 'make an API key and print it; it is shown once',
  async run({ config, args, texts }) {
    if (args.join(' ') !== 'create') throw new UsageError(`usage: sandyard ${key.usage}`)
    const days = texts['expires-in-days']
    if (days !== undefined && !/^[1-9]\d{0,4}$/.test(days))
      throw new UsageError('--expires-in-days takes a whole number of days')
    const expires_at = days === undefined ? null : new Date(systemClock.now().getTime() + Number(days) * DAY_MS)
    await using store = await borrowStore(config, makeLog(config.logLevel))
    const deps = { db: store.db, clock: systemClock, random: systemRandom, uuids: makeUuids(systemClock, systemRandom) }
    process.stdout.write(
      `${await makeApiKey(deps, { name: texts['name'] ?? 'made by sandyard key create', expires_at })}\n`,
    )
    return 0
  },
}
