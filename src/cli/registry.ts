import { text } from 'node:stream/consumers'
import { saveCredential } from '../control/save-credential.ts'
import { systemClock } from '../lib/clock.ts'
import { makeLog } from '../lib/log.ts'
import { systemRandom } from '../lib/random.ts'
import { makeSeal } from '../lib/seal.ts'
import { makeUuids } from '../lib/uuid.ts'
import { UsageError, type Command } from './command.ts'
import { openDataFolder } from './data-folder.ts'
import { borrowStore } from './open-store.ts'

export const registry: Command = {
  usage: 'registry login HOST --username U --password-stdin',
  summary: "save the organization's credential for an image registry",
  async run({ config, args, texts, switches }) {
    const [verb, host, ...rest] = args
    const username = texts['username']
    const isRight = verb === 'login' && host !== undefined && rest.length === 0 && switches.has('password-stdin')
    if (!isRight || username === undefined) throw new UsageError(`usage: sandyard ${registry.usage}`)
    const password = (await text(process.stdin)).replace(/\r?\n$/, '')
    if (password === '') throw new UsageError('the password is read from standard input, and there was none')
    const folder = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
    await using store = await borrowStore(config, makeLog(config.logLevel))
    const seal = makeSeal(folder.sealingKey, systemRandom)
    const deps = { db: store.db, clock: systemClock, uuids: makeUuids(systemClock, systemRandom), seal }
    const id = await saveCredential(deps, { host, username, password })
    process.stdout.write(`saved for ${host}: credential ${id}\n`)
    return 0
  },
}
