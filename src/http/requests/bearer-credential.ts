/** Returns the credential of an `Authorization: Bearer …` header. Null if there is none. */
export function bearerCredentialIn(authorization: string | undefined): string | null {
  return /^Bearer (\S{1,512})$/.exec(authorization ?? '')?.[1] ?? null
}
