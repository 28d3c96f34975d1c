import type { Command } from 'commander'
import { renderDocumentText } from '../../contract/openapi.ts'
import { runs } from '../command.ts'

/** Defines `sandyard openapi`, which prints the OpenAPI document of this version. */
export function defineOpenapi(openapi: Command): void {
  runs(openapi, async () => {
    process.stdout.write(renderDocumentText())
  })
}
