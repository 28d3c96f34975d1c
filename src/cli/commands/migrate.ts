import { makeLog } from '../../lib/log.ts'
import { dumpSchema } from '../../store/postgres/schema-dump.ts'
import type { Command } from './command.ts'
import { openSharedStore } from '../server/open-store.ts'

export const migrateCommand: Command = {
  usage: 'migrate [--dump]',
  summary: 'bring the database to the newest schema; --dump prints it as schema.sql has it',
  async run({ config, switches }) {
    await using store = await openSharedStore(config, makeLog(config.logLevel))
    process.stdout.write(switches.has('dump') ? await store.db.asSystem(dumpSchema) : 'the schema is the newest\n')
    return 0
  },
}
