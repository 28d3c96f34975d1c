import { renderDocumentText } from '../../contract/openapi.ts'
import type { Command } from './command.ts'

export const printOpenapi: Command = {
  usage: 'openapi',
  summary: 'print the OpenAPI document of the API',
  run: () => {
    process.stdout.write(renderDocumentText())
    return Promise.resolve(0)
  },
}
