use strict;
use warnings;

1;
