import type { Command } from 'commander'
import { dumpSchema } from '../../store/postgres/schema-dump.ts'
import { addSettings, runs } from '../command.ts'
import { withOperator } from './operator.ts'

/** Defines `sandyard migrate`. Opening the database applies the migrations. */
export function defineMigrate(migrate: Command): void {
  addSettings(migrate.option('--dump', 'print the schema as schema.sql has it'), 'dataDir', 'logLevel')
  runs(migrate, (call) =>
    withOperator(call, async ({ db }) => {
      process.stdout.write(call.switches.has('dump') ? await db.asSystem(dumpSchema) : 'the schema is up to date\n')
    }),
  )
}
