import type { Command } from 'commander'
import { openLog } from '../open-log.ts'
import { dumpSchema } from '../../store/postgres/schema-dump.ts'
import { addSettings, runs } from '../command.ts'
import { openSharedStore } from '../server/open-store.ts'

/** Defines `sandyard migrate`. Opening the database applies the migrations. */
export function defineMigrate(migrate: Command): void {
  addSettings(migrate.option('--dump', 'print the schema as schema.sql has it'), 'dataDir', 'logLevel')
  runs(migrate, async ({ config, switches }) => {
    await using store = await openSharedStore(config, openLog(config)) // makes a missing database, as `up` does
    process.stdout.write(switches.has('dump') ? await store.db.asSystem(dumpSchema) : 'the schema is up to date\n')
  })
}
