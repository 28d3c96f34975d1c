import { constants } from 'node:os'

/** The number and name of a system error, as the agent protocol writes them; nulls for any other error. */
export function errnoFields(error: unknown): { readonly errno: number | null; readonly errno_name: string | null } {
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') {
    return { errno: null, errno_name: null }
  }
  const { code } = error
  const errno = Object.entries(constants.errno).find(([name]) => name === code)?.[1]
  return errno === undefined ? { errno: null, errno_name: null } : { errno, errno_name: code }
}
